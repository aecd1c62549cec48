"""Shared parts of exports: a run, its requests with answers in the order of the prompt set, and new files."""

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from assayline.errors import SpecError
from assayline.files import UNFINISHED, storing, sync_folder
from assayline.store.database import Connection, Row, read_rows
from assayline.store.manifest import ENDED_WELL

ROWS_PER_FETCH = 2_000
LOCAL = "local"
"""Developer of a model that is not on the hub."""

ANSWERS = """
from (select * exclude (messages_json) from one_request where run_id = $run_id)
inner join (select * from prompt where run_id = $run_id) using (run_id, prompt_id, occurrence)
left join (select * exclude (token_at_s, prompt_logprobs_json) from one_answer where run_id = $run_id)
    using (run_id, request_id)
left join (
    select prompt_id, occurrence, map_from_entries(list((scorer, mean_value) order by scorer)) as means
    from prompt_score
    where run_id = $run_id
    group by prompt_id, occurrence
) using (prompt_id, occurrence)
left join (
    select
        prompt_id,
        occurrence,
        repeat_index,
        list(struct_pack(scorer := scorer, value := value, extracted := extracted) order by scorer) as scores
    from (select * {hide} from scores where run_id = $run_id)
    group by prompt_id, occurrence, repeat_index
) using (prompt_id, occurrence, repeat_index)
order by source_row, occurrence, repeat_index, option_index
"""
TEXTS = (
    "text", "reasoning", "rendered", "question", "target", "option", "extracted", "explanation", "reason",
    "error_message", "failure_message", "message", "media_json",
)  # fmt: skip
MESSAGES = ("messages_json", "turn_messages_json")
TOKENS = ("prompt_token_ids", "output_token_ids", "logprobs_json", "prompt_logprobs_json")
DIGESTS = {
    **{name: f"sha256({name})" for name in TEXTS},
    **{name: f"""'[{{"role": "user", "content": "' || sha256({name}) || '"}}]'""" for name in MESSAGES},
    **{name: f"nullif({name}, {name})" for name in TOKENS},
    "options": "[sha256(option) for option in options]",
    "metadata_json": """cast(json_merge_patch(
        '{}', json_object('url', metadata_json ->> 'url', 'model', metadata_json ->> 'model')
    ) as varchar)""",
    "spec_json": "cast(json_object('digest', sha256(spec_json)) as varchar)",
}
"""Columns with prompts, answers or quotations of them, and what an export without texts has instead."""


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run and its counts, for an export."""

    run_dir: Path
    row: Row
    """The run's row in the table runs."""
    spec: dict[str, Any]
    """The spec as it was stored."""
    requests: int
    """Number of stored requests."""
    unanswered: int
    has_options: bool = False
    """Whether requests ask for likelihoods of given answers."""
    without_texts: bool = False
    """Whether digests replace prompts and answers."""

    def read_spec(self, path: str) -> Any:
        """Return a field of the spec by its dotted name; None if the stored spec, which may be older, lacks it."""
        value: Any = self.spec
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def hide(self, value: Any) -> Any:
        """Return a JSON value, with digests for its texts if the export is without texts."""
        if not self.without_texts:
            return value
        if isinstance(value, dict):
            return {name: self.hide(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        return digest(value) if isinstance(value, str) else value

    @property
    def started_unix_s(self) -> float:
        """Unix time of the run's start."""
        return unix_s(self.row["started_at"])

    def describe_gap(self) -> str | None:
        """Describe the missing part of the run; None for a completed run with all answers."""
        state, run_id = self.row["state"], self.row["run_id"]
        if state in ENDED_WELL and not self.unanswered:
            return None
        total = self.row["expected_requests"]
        of = f"of its {total} requests" if total is not None else f"of {self.requests} requests prepared so far"
        ended = "has not finished" if state == "running" else f"is {state}"
        return (
            f"Run {run_id} {ended}: {self.requests - self.unanswered} {of} are answered and exported. "
            f"hint: resume it with `assayline evaluate --resume {run_id}`."
        )


def unix_s(moment: datetime) -> float:
    """Convert a time of the database, which has no time zone and is UTC, to Unix time."""
    return moment.replace(tzinfo=UTC).timestamp()


def name_model(model: str) -> tuple[str, str]:
    """Return the developer and the name of a model: those of its hub id, or LOCAL and its folder's name."""
    if found := re.fullmatch(r"([\w-][\w.-]*)/([\w.-]+)", model):
        return found[1], found[2]
    return LOCAL, re.sub(r"[^\w.-]+", "_", Path(model).name)


def digest(text: str) -> str:
    """Return the SHA-256 of a text in hex."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def replace_texts(columns: Iterable[str]) -> str:
    """Return what follows `select *` to replace those of the columns that have texts by digests."""
    found = [f"{DIGESTS[name]} as {name}" for name in columns if name in DIGESTS]
    return f" replace ({', '.join(found)})" if found else ""


def find_exported(connection: Connection, run_id: str, run_dir: Path, without_texts: bool) -> ExportedRun:
    """Read a run and its counts. Raises SpecError for a run that is not in the database."""
    rows = read_rows(connection, "select * from runs where run_id = ?", run_id)
    if not rows:
        raise SpecError(
            f"No run {run_id} in the database. hint: list the runs with `assayline list runs`, or load one from its "
            f"folder with `assayline db rebuild {run_id}`."
        )
    (counts,) = read_rows(
        connection,
        "select count(*) as requests, count(*) filter (one_answer.request_id is null) as unanswered, "
        "count(option_index) > 0 as has_options "
        "from (select request_id, option_index from one_request where run_id = $1) "
        "left join (select request_id from one_answer where run_id = $1) as one_answer using (request_id)",
        run_id,
    )
    return ExportedRun(run_dir, rows[0], json.loads(rows[0]["spec_json"]), without_texts=without_texts, **counts)


def read_prompts(connection: Connection, run: ExportedRun) -> Iterator[list[Row]]:
    """Yield the requests of each prompt with their answers, reading a few thousand at a time."""
    values = {"run_id": run.row["run_id"]}
    query = ANSWERS.replace("{hide}", replace_texts(["extracted"]) if run.without_texts else "")
    if run.without_texts:
        columns = connection.execute(f"describe {query}", values).fetchall()
        query = f"select * {replace_texts(name for name, *_ in columns)} {query}"
    found = connection.execute(query, values)
    names = [str(column[0]) for column in found.description or ()]
    fetched = iter(lambda: found.fetchmany(ROWS_PER_FETCH), [])
    rows = (dict(zip(names, row, strict=True)) for row in itertools.chain.from_iterable(fetched))
    for _, group in itertools.groupby(rows, itemgetter("source_row", "occurrence")):
        yield list(group)


class Exported(NamedTuple):
    """An export on disk."""

    files: list[Path]
    """The files that were written, or the folder."""
    sentences: list[str]
    """Lines to print: counts, and what the run lacks."""


@contextmanager
def new_files(folder: Path, names: Sequence[str], force: bool) -> Iterator[Path]:
    """Provide an empty folder for files of these names, which move to `folder` if the block succeeds.

    An empty file does not move, but removes the existing one. Other files in `folder` are kept. Raises SpecError if
    one of the files exists already, unless `force`, and StoreError.
    """
    for name in names:
        if (folder / name).exists() and not force:
            raise SpecError(
                f"{folder / name} already exists. hint: pass another path with --output, or replace it with --force."
            )
    aside = folder / f".export{UNFINISHED}"
    try:
        with storing(f"{folder} cannot be written", "free space, or choose another place with --output."):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            yield aside
            for name in names:
                if (aside / name).stat().st_size:
                    (aside / name).replace(folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
            sync_folder(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()  # unless it has files
