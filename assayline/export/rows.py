"""A run's requests as exports read them: one row each, in the order of the prompt set, in the memory of a few thousand.

What is wanted is joined into a table of this connection and sorted in a second step: DuckDB does either in little
memory, using the disk, and not both at once.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assayline.errors import AssaylineError, SpecError
from assayline.model import identify_model
from assayline.requests.chat import load_tokenizer
from assayline.store.database import Connection, Row, read_rows

ROWS_PER_FETCH = 2_000
ORDER = "source_row, occurrence, repeat_index, option_index, turn_index"

TEXTS = """
select
    source_row,
    occurrence,
    repeat_index,
    option_index,
    turn_index,
    prompt_id,
    request_id,
    source_id,
    messages_json,
    target,
    metadata_json,
    rendered,
    sampling_json,
    worker,
    prompt_tokens,
    cached_tokens,
    output_tokens,
    finish_reason,
    stop_reason,
    text,
    reasoning,
    logprobs_json,
    output_token_ids,
    option,
    option_logprob,
    error_kind,
    error_message
from (select * exclude (messages_json) from one_request where run_id = $run_id)
inner join (select * from prompt where run_id = $run_id) using (run_id, prompt_id, occurrence)
left join (select * from one_answer where run_id = $run_id) using (run_id, request_id)
"""
"""What was asked and answered, before any metric."""

METRICS = """
select
    runs.run_id,
    runs.name,
    runs.model,
    runs.prompt_set,
    runs.started_at,
    prompt.source_id,
    prompt.messages_json,
    prompt.metadata_json,
    one_request.rendered,
    one_request.sampling_json,
    one_request.turn_messages_json,
    measured.* exclude (run_id),
    one_answer.reasoning,
    one_answer.stop_reason,
    one_answer.output_token_ids,
    number_scores.scores_json
from (select * from stg_requests where run_id = $run_id) as measured
inner join runs using (run_id)
inner join (select * from one_request where run_id = $run_id) as one_request using (request_id)
inner join (select * from prompt where run_id = $run_id) as prompt
    on prompt.prompt_id = measured.prompt_id and prompt.occurrence = measured.occurrence
left join (select * from one_answer where run_id = $run_id) as one_answer using (request_id)
left join (
    select
        prompt_id,
        occurrence,
        repeat_index,
        to_json(map_from_entries(list((scorer, value) order by scorer)))::varchar as scores_json
    from scores
    where run_id = $run_id
    group by prompt_id, occurrence, repeat_index
) as number_scores
    on number_scores.prompt_id = measured.prompt_id
    and number_scores.occurrence = measured.occurrence
    and number_scores.repeat_index = measured.repeat_index
"""
"""Every column of `stg_requests`, beside what was asked and how it was scored."""


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """What an export must know of its run."""

    row: Row
    """Of the table runs."""
    spec: dict[str, Any]
    """As it was stored."""
    requests: int
    """Those that are stored."""
    unanswered: int

    def read_spec(self, path: str) -> Any:
        """A field of the spec by its dotted name; None where the stored one, which may be older, has none."""
        value: Any = self.spec
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def source_kind(self) -> str | None:
        """Kind of the source of its prompts."""
        kind: str | None = self.read_spec("prompts.source.kind")
        return kind

    @property
    def has_options(self) -> bool:
        """Whether it asked for likelihoods of given answers, and has no generated text."""
        return any(scorer["kind"] == "loglikelihood" for scorer in self.read_spec("scorers") or [])

    @property
    def has_turns(self) -> bool:
        """Whether its conversations were asked turn by turn."""
        return bool(self.read_spec("prompts.turns") == "each")

    def describe_gap(self) -> str | None:
        """What is missing of the run, in a sentence; None of a completed run, whose requests all have an answer."""
        state, run_id = self.row["state"], self.row["run_id"]
        if state == "completed" and not self.unanswered:
            return None
        total = self.row["expected_requests"]
        of = f"of its {total} requests" if total is not None else f"of the {self.requests} that were prepared so far"
        ended = "has not finished" if state == "running" else f"is {state}"
        return (
            f"Run {run_id} {ended}: {self.requests - self.unanswered} {of} are answered, and these are exported. "
            f"`assayline evaluate --resume {run_id}` resumes it."
        )


def find_exported(connection: Connection, run_id: str) -> ExportedRun:
    """The run and its counts. Raises SpecError for a run that is not in the database."""
    rows = read_rows(connection, "select * from runs where run_id = ?", run_id)
    if not rows:
        raise SpecError(
            f"There is no run {run_id} in the database. `from run` lists the runs, and "
            f"`assayline rebuild {run_id}` loads one from its folder."
        )
    (counts,) = read_rows(
        connection,
        "select count(*) as requests, count(*) filter (one_answer.request_id is null) as unanswered "
        "from (select request_id from one_request where run_id = $1) "
        "left join (select request_id from one_answer where run_id = $1) as one_answer using (request_id)",
        run_id,
    )
    return ExportedRun(rows[0], json.loads(rows[0]["spec_json"]), counts["requests"], counts["unanswered"])


@contextmanager
def open_rows(connection: Connection, query: str, run_id: str) -> Iterator["RowStream"]:
    """TEXTS or METRICS of a run, until the block ends."""
    connection.execute(f"create or replace temp table exported_rows as {query}", {"run_id": run_id})
    try:
        yield RowStream(connection)
    finally:
        connection.execute("drop table if exists temp.exported_rows")


class RowStream:
    """Rows that can be read again and again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def columns(self) -> dict[str, str]:
        """Names and DuckDB's types, in their order."""
        found = self._connection.execute("describe temp.exported_rows").fetchall()
        return {name: kind for name, kind, *_ in found}

    def read(self, columns: str = "*") -> Iterator[Row]:
        """In the order of the prompt set; `columns` as SQL has them."""
        for rows in self.read_pieces(columns):
            yield from rows

    def read_pieces(self, columns: str = "*", most: int = ROWS_PER_FETCH) -> Iterator[list[Row]]:
        """The same, up to `most` at a time."""
        query = f"select {columns} from temp.exported_rows order by {ORDER}"  # noqa: S608 - columns are ours
        found = self._connection.execute(query)
        names = [str(column[0]) for column in found.description or ()]
        while rows := found.fetchmany(most):
            yield [dict(zip(names, row, strict=True)) for row in rows]


class TokenNames:
    """The tokenizer of a run's spec, opened when the first token is to be named."""

    def __init__(self, run: ExportedRun) -> None:
        self._run = run
        self._names: dict[str, str] = {}

    def name(self, token: str) -> str:
        """The token's text; `token_id:N`, as vLLM writes it, where the tokenizer is not there any more."""
        if token not in self._names:
            self._names[token] = (
                f"token_id:{token}" if self._tokenizer is None else self._tokenizer.decode([int(token)])
            )
        return self._names[token]

    def describe(self, token: str, logprob: float) -> dict[str, Any]:
        """An entry of a chat completion's log-probabilities."""
        name = self.name(token)
        return {"token": name, "logprob": logprob, "bytes": list(name.encode("utf-8", "replace"))}

    @cached_property
    def _tokenizer(self) -> Any:
        own = self._run.read_spec("engine.args.tokenizer")
        name, revision = (own, "engine.args.tokenizer_revision") if own else (self._run.row["model"], "revision")
        try:
            folder = identify_model(name, self._run.read_spec(revision)).folder
            return None if folder is None else load_tokenizer(folder)
        except AssaylineError:
            return None
