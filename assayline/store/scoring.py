"""Scoring: compare a run's stored answers with their targets, by functions, and store the scores.

Samples are streamed, not held in memory. Scores of a harness, of functions of the user's and of judges come from
outside: `score_files.py` keeps them in the run's folder.
"""

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from assayline import __version__
from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.records import Json
from assayline.scorers import Score
from assayline.scorers.process import ScorerInput, check_function, define_function, read_own_code, score_answers
from assayline.scorers.text import compile_pattern
from assayline.spec.criteria import (
    ChoiceLetter,
    FunctionScorer,
    Loglikelihood,
    RegexMatch,
    Scorer,
    list_kinds,
)
from assayline.spec.judges import JudgeScorer, VerdictScorer
from assayline.store.database import list_models
from assayline.store.metrics import forget_metrics
from assayline.store.score_files import (
    NO_HARNESS_SCORES,
    SCORER_ERROR,
    UNREADABLE,
    FunctionScores,
    HarnessScore,
    HarnessScores,
)
from assayline.store.views import quote_text

ROWS_PER_FETCH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The result of one request of a run."""

    prompt_id: str
    occurrence: int
    source_id: str
    repeat_index: int
    option_index: int | None
    text: str | None
    option_logprob: float | None
    prompt_logprobs: Json
    """{token id: log-probability} per token of the option, if requested."""
    error_kind: str | None


def read_answers(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[StoredAnswer]:
    """Yield the run's answered requests, including error rows, in no particular order."""
    found = connection.execute(
        """
        select
            prompt_id, occurrence, source_id, repeat_index, option_index, text, option_logprob, prompt_logprobs_json,
            error_kind
        from (select * from one_answer where run_id = $run_id)
        inner join (select * from one_request where run_id = $run_id) using (run_id, request_id)
        inner join (select * from prompt where run_id = $run_id) using (run_id, prompt_id, occurrence)
        """,
        {"run_id": run_id},
    )
    names = [str(column[0]) for column in found.description or ()]
    while rows := found.fetchmany(ROWS_PER_FETCH):
        for row in rows:
            values = dict(zip(names, row, strict=True))
            logprobs = values.pop("prompt_logprobs_json")
            yield StoredAnswer(**values, prompt_logprobs=json.loads(logprobs) if logprobs else None)


class SampleToScore(NamedTuple):
    """An answer for a function to score."""

    prompt_id: str
    occurrence: int
    repeat_index: int
    answer: str
    target: str | None
    source_id: str | None
    row: dict[str, Json]
    """The metadata columns of the prompt's row."""


def read_samples(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[SampleToScore]:
    """Return the run's generated answers, without errors."""
    rows = connection.execute(
        """
        select prompt_id, occurrence, repeat_index, answer, samples.target, source_id, metadata_json
        from (select * from stg_samples where run_id = $run_id and status = 'ok' and answer is not null) as samples
        inner join (select * from prompt where run_id = $run_id) as prompts using (run_id, prompt_id, occurrence)
        order by samples.source_row, repeat_index
        """,
        {"run_id": run_id},
    ).fetchall()
    return [SampleToScore._make([*values, json.loads(metadata)]) for *values, metadata in rows]


def insert_harness_scores(connection: duckdb.DuckDBPyConnection, run_id: str, judged: HarnessScores) -> dict[str, int]:
    """Replace scorers and scores in the tables, in the caller's transaction; return the number of scores by scorer."""
    _delete_scores(connection, run_id, list(judged.scorers))
    _insert_rows(connection, run_id, judged.scores)
    if judged.file is not None:
        rows = "insert into scores by name select ? as run_id, * from read_parquet(?)"
        connection.execute(rows, [run_id, str(judged.file)])
    for ordinal, (name, described) in enumerate(judged.scorers.items()):
        arguments = {"definition": described["kind"], **described}
        _insert_scorer(connection, run_id, ordinal, name, arguments.pop("definition"), arguments)
    query = "select scorer, count(*) from scores where run_id = ? group by scorer"
    counts = dict(connection.execute(query, [run_id]).fetchall())
    return {name: counts.get(name, 0) for name in judged.scorers}


def _delete_scores(connection: duckdb.DuckDBPyConnection, run_id: str, scorers: list[str]) -> None:
    for table in ("scores", "scorers"):
        connection.execute(
            f"delete from {table} where run_id = ? and list_contains(?, scorer)",  # noqa: S608 - table is ours
            [run_id, scorers],
        )


_INSERT_ERRORS = """
insert into scores
select
    run_id, $scorer, prompt_id, occurrence, repeat_index, 0, null, 'error: ' || error_kind, error_kind, null
from stg_samples
where run_id in {runs} and status = 'error' and (target is not null or not $needs_target)
"""


def score_run(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    scorers: Sequence[Scorer],
    only: Collection[str] | None = None,
    judged: HarnessScores = NO_HARNESS_SCORES,
    functions: Mapping[str, FunctionScores] = MappingProxyType({}),
) -> dict[str, int]:
    """Recompute the scores of a run, in the caller's transaction; return the number of scores by scorer.

    `scorers` are all scorers of the run in order, after those in `judged`; `only` restricts the work to some names.
    Requests without an answer have no score, errors score 0, and prompts without a target have no score if the scorer
    needs one. A scorer without scores is not recorded. `functions` has the scores of functions and judges, by scorer.
    Stage the run first, else requests are combined once per scorer.
    """
    return score_runs(connection, [run_id], scorers, only, judged, functions)[run_id]


def score_runs(
    connection: duckdb.DuckDBPyConnection,
    run_ids: Sequence[str],
    scorers: Sequence[Scorer],
    only: Collection[str] | None = None,
    judged: HarnessScores = NO_HARNESS_SCORES,
    functions: Mapping[str, FunctionScores] = MappingProxyType({}),
) -> dict[str, dict[str, int]]:
    """Score several runs like `score_run`; only a single one can have scores in `judged` and `functions`."""
    forget_metrics(connection, *run_ids)
    counts: dict[str, dict[str, int]] = {run_id: {} for run_id in run_ids}
    if judged.scorers:
        counts = {run_id: insert_harness_scores(connection, run_id, judged) for run_id in run_ids}
    for ordinal, scorer in enumerate(scorers, start=len(judged.scorers)):
        if only is not None and scorer.title not in only:
            continue
        for run_id in run_ids:
            _delete_scores(connection, run_id, [scorer.title])
        if isinstance(scorer, FunctionScorer | JudgeScorer):
            if (given := functions.get(scorer.title)) is None:
                counts = {run_id: {**counts[run_id], scorer.title: 0} for run_id in run_ids}
                continue
            definition = given.definition
            for run_id in run_ids:
                _insert_rows(connection, run_id, given.scores)
        else:
            definition = define_scorer(scorer.kind)
            places = isinstance(scorer, ChoiceLetter | Loglikelihood)  # each run has its own
            for some in [[run_id] for run_id in run_ids] if places else [run_ids]:
                _insert_scores(connection, some, scorer)
        values = {"scorer": scorer.title, "needs_target": scorer.needs_target}
        connection.execute(_INSERT_ERRORS.format(runs=_list_runs(run_ids)), values)
        query = f"select run_id, count(*) from scores where scorer = ? and run_id in {_list_runs(run_ids)} group by all"  # noqa: S608
        scored = dict(connection.execute(query, [scorer.title]).fetchall())
        for run_id in run_ids:
            counts[run_id][scorer.title] = scored.get(run_id, 0)
            if counts[run_id][scorer.title]:
                arguments = scorer.model_dump(mode="json")
                _insert_scorer(connection, run_id, ordinal, scorer.title, definition, arguments)
    return counts


def _list_runs(run_ids: Iterable[str]) -> str:
    return f"({', '.join(map(quote_text, run_ids))})"


def check_scorers(scorers: Sequence[Scorer]) -> None:
    """Try patterns and functions of scorers, before the first prompt is sent. Raises SpecError."""
    for scorer in scorers:
        if isinstance(scorer, FunctionScorer):
            check_function(scorer)
        elif isinstance(scorer, RegexMatch):
            try:
                compile_pattern(scorer.pattern)
            except ValueError as error:
                raise SpecError(
                    f"scorers: the pattern {scorer.pattern!r} of {scorer.title} {error}. hint: use Python's syntax, "
                    "with parentheses around the part to extract."
                ) from None


_SCHEMA = pa.schema(
    {
        "run_id": pa.dictionary(pa.int32(), pa.string()),
        "scorer": pa.dictionary(pa.int8(), pa.string()), "prompt_id": pa.string(), "occurrence": pa.int32(),
        "repeat_index": pa.int32(), "value": pa.float64(), "extracted": pa.string(), "explanation": pa.string(),
        "error_kind": pa.string(), "found_by": pa.string(),
    }
)  # fmt: skip
"""Columns of the table scores."""


def _insert_rows(connection: duckdb.DuckDBPyConnection, run_id: str, scores: Sequence[HarnessScore]) -> None:
    columns = {name: [score[place] for score in scores] for place, name in enumerate(HarnessScore._fields)}
    columns["run_id"] = [run_id] * len(scores)
    arrays = {name: pa.array(values, _SCHEMA.field(name).type) for name, values in columns.items()}
    _insert_table(connection, pa.table(arrays))


def _insert_table(connection: duckdb.DuckDBPyConnection, scores: pa.Table) -> None:
    connection.register("given_scores", scores)
    try:
        connection.execute("insert into scores by name from given_scores")
    finally:
        connection.unregister("given_scores")


_ROWS = {
    "json": """{'json_schema': (
        select any_value(sampling_json -> '$.structured_outputs.json')
        from requests
        where requests.run_id = samples.run_id and requests.request_id = samples.request_id
    )}""",
    "loglikelihood": "{'options': options, 'option_logprobs': option_logprobs, 'option_tokens': option_tokens}",
    "verdict": """(
        select {
            'first': metadata_json ->> '$.first',
            'other': case when metadata_json ->> '$.other.run_id' is not null then {'run_id': true} end
        }
        from prompt
        where prompt.run_id = samples.run_id
            and prompt.prompt_id = samples.prompt_id
            and prompt.occurrence = samples.occurrence
    )""",
}
"""The `row` of the functions of some kinds."""
_SAMPLES = """
    select run_id, prompt_id, occurrence, repeat_index, answer, {target} as target, {row} as row
    from stg_samples as samples
    where run_id in {runs} and status = 'ok' and (target is not null or not $needs_target)
"""


def _insert_scores(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str], scorer: Scorer) -> None:
    """Score the runs' answers by a function of assayline's own, in batches."""
    target = _PLACE_FROM_ZERO if _counts_from_one(connection, run_ids[0], scorer) else "target"
    query = _SAMPLES.format(target=target, row=_ROWS.get(scorer.kind, "null"), runs=_list_runs(run_ids))
    found = connection.sql(query, params={"needs_target": scorer.needs_target})
    keys: deque[tuple[str, str, int, int]] = deque()

    def read() -> Iterator[ScorerInput]:
        for batch in found.to_arrow_reader(ROWS_PER_FETCH):
            *names, answers, targets, rows = (column.to_pylist() for column in batch.columns)
            keys.extend(zip(*names, strict=True))
            yield from map(ScorerInput, answers, targets, [{} if row is None else row for row in rows])

    scored = score_answers(scorer, read())
    tables = [_SCHEMA.empty_table()]
    while some := list(islice(scored, ROWS_PER_FETCH)):
        tables.append(_tabulate(scorer, [(keys.popleft(), score) for score in some]))
    _insert_table(connection, pa.concat_tables(tables))


def _tabulate(scorer: Scorer, scored: Iterable[tuple[tuple[str, str, int, int], Score | None]]) -> pa.Table:
    unread = UNREADABLE if isinstance(scorer, VerdictScorer) else None
    rows = [
        (
            key[0], scorer.title, *key[1:], score.value, score.extracted, score.reason,
            SCORER_ERROR if score.failure else unread if score.extracted is None else None, score.found_by,
        )
        for key, score in scored
        if score is not None
    ]  # fmt: skip
    return pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA)


_PLACE_FROM_ZERO = """
case
    when regexp_full_match(target, '\\s*\\d{1,6}\\s*') and list_position(options, target) is null
    then cast(cast(target as integer) - 1 as varchar)
    else target
end
"""
_COUNTS_FROM_ONE = """
select coalesce(bool_and(place > 0) and bool_or(place = coalesce(len(options), $letters)), false)
from (select try_cast(target as integer) as place, target, options from stg_samples where run_id = $run_id)
where regexp_full_match(target, '\\s*\\d{1,6}\\s*') and list_position(options, target) is null
"""


def _counts_from_one(connection: duckdb.DuckDBPyConnection, run_id: str, scorer: Scorer) -> bool:
    """Return True if the run's targets are the places of options counted from 1: none is 0 and one is the last."""
    letters = scorer.letters if isinstance(scorer, ChoiceLetter) else ""
    if not isinstance(scorer, ChoiceLetter | Loglikelihood) or any(map(str.isdigit, letters)):
        return False
    values = {"run_id": run_id, "letters": len(letters)}
    return bool(connection.execute(_COUNTS_FROM_ONE, values).fetchall()[0][0])


def _insert_scorer(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    ordinal: int,
    name: str,
    definition: str,
    arguments: dict[str, Any],
) -> None:
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace").decode()
    row = [run_id, name, arguments["kind"], ordinal, text, __version__, datetime.now(UTC).replace(tzinfo=None)]
    connection.execute("insert into scorers values (?, ?, ?, ?, ?, ?, ?, ?)", [*row, definition])


@cache
def define_scorer(kind: str) -> str:
    """Return the digest of the code that decides a scorer's scores together with its arguments, without comments."""
    code = {"samples": _SAMPLES, "errors": _INSERT_ERRORS, "row": _ROWS.get(kind, "")}
    code["stg_samples"] = _read_code(list_models()["stg_samples"].text)
    if kind in ("choice", "loglikelihood"):
        code["places"] = _COUNTS_FROM_ONE + _PLACE_FROM_ZERO
    return digest_json(code | read_own_code(list_kinds()[kind].module))


def _read_code(text: str) -> str:
    code = re.sub(r"^(--|comment on ).*$", "", text, flags=re.MULTILINE)
    return " ".join(re.sub(r"\b(internal|raw)\.", "", code).split())  # schemas decide nothing


def list_stale(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """List runs with scores of a scorer whose definition changed, oldest first, without harnesses and judges."""
    scorers = connection.execute(
        "select distinct kind, arguments_json, definition from scorers "
        "where kind not in ('lm_eval', 'judge', 'imported')"
    ).fetchall()
    stale = [list(scorer) for scorer in scorers if _define_now(scorer[0], scorer[1]) not in (scorer[2], None)]
    rows = connection.execute(
        """
        select distinct run_id, started_at
        from scorers
        join runs using (run_id)
        where list_contains(?::varchar[][], [kind, arguments_json, definition])
        order by started_at, run_id
        """,
        [stale],
    ).fetchall()
    return [run_id for run_id, _ in rows]


def _define_now(kind: str, arguments_json: str) -> str | None:
    """Return a scorer's current definition; None if its function cannot be found."""
    part = list_kinds().get(kind)
    if part is None or not issubclass(part, FunctionScorer):
        return define_scorer(kind) if part else None
    try:
        return define_function(part.model_validate_json(arguments_json))
    except (SpecError, ValueError):
        return None
