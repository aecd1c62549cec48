"""Scores that a harness of its own gave: the answers it is asked with, and what it said of them.

They come from outside SQL, so the run's folder keeps them (`lm_eval/scores.json`), and a database made anew has them
too.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from assayline import __version__
from assayline.errors import StoreError
from assayline.files import MAKE_ROOM, write_text
from assayline.records import Json

FOLDER_NAME = "lm_eval"
SCORES_NAME = f"{FOLDER_NAME}/scores.json"
ROWS_PER_FETCH = 10_000


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What became of one request of a run."""

    prompt_id: str
    occurrence: int
    source_id: str
    repeat_index: int
    option_index: int | None
    text: str | None
    option_logprob: float | None
    prompt_logprobs: Json
    """Per token of the option, {token id: log-probability}, where asked for."""
    error_kind: str | None


class JudgedScore(NamedTuple):
    """A row of the table scores, of the first repeat: a document has one score, whatever its repeats."""

    scorer: str
    prompt_id: str
    occurrence: int
    value: float
    extracted: str | None
    explanation: str
    error_kind: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """All that was said of a run."""

    scorers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What `scorers.arguments_json` holds, and the `definition`, by name, the most important one first."""
    scores: Sequence[JudgedScore] = ()


NOT_JUDGED: Judged = Judged()
"""Of a run that only scorers of our own judge."""


def read_answers(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[StoredAnswer]:
    """The run's answered requests, error rows included, in no order."""
    found = connection.execute(
        """
        select
            prompt_id, occurrence, source_id, repeat_index, option_index, text, option_logprob, prompt_logprobs_json,
            error_kind
        from (select * from one_answer where run_id = $run_id)
        inner join (select * from one_request where run_id = $run_id) using (run_id, request_id)
        inner join (select * from one_prompt where run_id = $run_id) using (run_id, prompt_id, occurrence)
        """,
        {"run_id": run_id},
    )
    names = [str(column[0]) for column in found.description or ()]
    while rows := found.fetchmany(ROWS_PER_FETCH):
        for row in rows:
            values = dict(zip(names, row, strict=True))
            logprobs = values.pop("prompt_logprobs_json")
            yield StoredAnswer(**values, prompt_logprobs=json.loads(logprobs) if logprobs else None)


def write_judged(run_dir: Path, judged: Judged) -> None:
    """Keeps it in the run's folder. Raises StoreError."""
    value = {"scorers": judged.scorers, "scores": [list(score) for score in judged.scores]}
    write_text(run_dir / SCORES_NAME, json.dumps(value, ensure_ascii=False), MAKE_ROOM)


def read_judged(run_dir: Path) -> Judged:
    """What the run's folder keeps; nothing, of most runs. Raises StoreError for a file that cannot be read."""
    path = run_dir / SCORES_NAME
    try:
        value = json.loads(path.read_bytes())
        return Judged(value["scorers"], [JudgedScore(*score) for score in value["scores"]])
    except FileNotFoundError:
        return NOT_JUDGED
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{path}, the scores of lm-evaluation-harness, cannot be read: {reason}. Put a copy in its place, or "
            "remove it; the run then has no such scores."
        ) from None


def insert_judged(connection: duckdb.DuckDBPyConnection, run_id: str, judged: Judged) -> dict[str, int]:
    """Puts scorers and scores into the tables in place of earlier ones, inside the caller's transaction; how many
    each gave."""
    counts = dict.fromkeys(judged.scorers, 0)
    if not counts:
        return counts
    for table in ("scores", "scorers"):
        connection.execute(
            f"delete from {table} where run_id = ? and list_contains(?, scorer)",  # noqa: S608 - table is ours
            [run_id, list(judged.scorers)],
        )
    columns = {name: [score[place] for score in judged.scores] for place, name in enumerate(JudgedScore._fields)}
    judged_scores = pa.table({name: pa.array(values) for name, values in columns.items()})
    connection.register("judged_scores", judged_scores)
    try:
        connection.execute(
            "insert into scores by name select ? as run_id, 0 as repeat_index, * from judged_scores", [run_id]
        )
    finally:
        connection.unregister("judged_scores")
    now = datetime.now(UTC).replace(tzinfo=None)
    for ordinal, (name, described) in enumerate(judged.scorers.items()):
        arguments = {"definition": described["kind"], **described}
        definition = arguments.pop("definition")
        row = [run_id, name, arguments["kind"], ordinal, json.dumps(arguments, ensure_ascii=False, sort_keys=True)]
        connection.execute("insert into scorers values (?, ?, ?, ?, ?, ?, ?, ?)", [*row, __version__, now, definition])
        counts[name] = sum(score.scorer == name for score in judged.scores)
    return counts
