"""Rows of a run for exports: one per request, in the order of the prompt set, a few thousand in memory at a time.

The rows are joined into a temporary table and sorted in a second step: DuckDB does each step in little memory, using
the disk, but not both at once.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
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
"""Query of requests and answers, without metrics."""

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
"""Query of every column of `stg_requests`, with prompts, answers and scores."""


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run and its counts, for an export."""

    row: Row
    """The run's row in the table runs."""
    spec: dict[str, Any]
    """The spec as it was stored."""
    requests: int
    """Number of stored requests."""
    unanswered: int

    def read_spec(self, path: str) -> Any:
        """Return a field of the spec by its dotted name; None if the stored spec, which may be older, lacks it."""
        value: Any = self.spec
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def started_unix_s(self) -> float:
        """Unix time of the run's start; the database has it in UTC, without a time zone."""
        return float(self.row["started_at"].replace(tzinfo=UTC).timestamp())

    @property
    def source_kind(self) -> str | None:
        """Kind of the prompt source."""
        kind: str | None = self.read_spec("prompts.source.kind")
        return kind

    @property
    def has_options(self) -> bool:
        """True if the run has likelihoods of given answers and no generated text."""
        return any(scorer["kind"] == "loglikelihood" for scorer in self.read_spec("scorers") or [])

    @property
    def has_turns(self) -> bool:
        """True if conversations were sent turn by turn."""
        return bool(self.read_spec("prompts.turns") == "each")

    def describe_gap(self) -> str | None:
        """Describe the missing part of the run; None for a completed run with all answers."""
        state, run_id = self.row["state"], self.row["run_id"]
        if state == "completed" and not self.unanswered:
            return None
        total = self.row["expected_requests"]
        of = f"of its {total} requests" if total is not None else f"of {self.requests} requests prepared so far"
        ended = "has not finished" if state == "running" else f"is {state}"
        return (
            f"Run {run_id} {ended}: {self.requests - self.unanswered} {of} are answered and exported. "
            f"hint: resume it with `assayline evaluate --resume {run_id}`."
        )


def find_exported(connection: Connection, run_id: str) -> ExportedRun:
    """Read a run and its counts. Raises SpecError for a run that is not in the database."""
    rows = read_rows(connection, "select * from runs where run_id = ?", run_id)
    if not rows:
        raise SpecError(
            f"No run {run_id} in the database. hint: list the runs with `assayline runs`, or load one from its folder "
            f"with `assayline rebuild {run_id}`."
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
    """Provide TEXTS or METRICS of a run inside the block."""
    connection.execute(f"create or replace temp table exported_rows as {query}", {"run_id": run_id})
    try:
        yield RowStream(connection)
    finally:
        connection.execute("drop table if exists temp.exported_rows")


class RowStream:
    """Rows that can be read repeatedly."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def columns(self) -> dict[str, str]:
        """Return names and DuckDB types, in order."""
        found = self._connection.execute("describe temp.exported_rows").fetchall()
        return {name: kind for name, kind, *_ in found}

    def read(self, columns: str = "*") -> Iterator[Row]:
        """Yield rows in the order of the prompt set. `columns` is SQL."""
        for rows in self.read_pieces(columns):
            yield from rows

    def read_pieces(self, columns: str = "*", most: int = ROWS_PER_FETCH) -> Iterator[list[Row]]:
        """Yield the same rows in lists of up to `most`."""
        query = f"select {columns} from temp.exported_rows order by {ORDER}"  # noqa: S608 - columns are ours
        found = self._connection.execute(query)
        names = [str(column[0]) for column in found.description or ()]
        while rows := found.fetchmany(most):
            yield [dict(zip(names, row, strict=True)) for row in rows]


class TokenNames:
    """Names of tokens by the tokenizer of a run's spec, which is opened on first use."""

    def __init__(self, run: ExportedRun) -> None:
        self._run = run
        self._names: dict[str, str] = {}

    def name(self, token: str) -> str:
        """Return the token's text; `token_id:N`, vLLM's format, if the tokenizer is no longer available."""
        if token not in self._names:
            self._names[token] = (
                f"token_id:{token}" if self._tokenizer is None else self._tokenizer.decode([int(token)])
            )
        return self._names[token]

    def describe(self, token: str, logprob: float) -> dict[str, Any]:
        """Format an entry of a chat completion's log-probabilities."""
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
