"""Scoring: compare a run's stored answers with their targets.

Scorers are macros of `sql/scorers/`; this module calls them with their arguments and stores the scores. For JSON,
DuckDB calls a Python function per answer. Samples are streamed, not held in memory.

Scores of a harness and of functions come from outside: `score_files.py` keeps them in the run's folder.
"""

import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from assayline import __version__
from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.records import Json
from assayline.scorers.process import check_function, define_function
from assayline.spec.criteria import (
    FUNCTION_KINDS,
    ChoiceLetter,
    FunctionScorer,
    JsonMatch,
    Loglikelihood,
    RegexMatch,
    Scorer,
    SqlScorer,
)
from assayline.spec.judges import JudgeScorer, VerdictScorer
from assayline.spec.part import ScorerPart
from assayline.store import json_match
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


_INSERT = """
insert into scores
select
    run_id, $scorer, prompt_id, occurrence, repeat_index, score.value, score.extracted, score.explanation, error_kind,
    score.found_by
from (
    select
        *,
        case
            when status = 'error' and (target is not null or not $needs_target)
            then make_score(0, null, 'error: ' || error_kind)
            when status = 'ok' then {call}
        end as score
    from stg_samples
    where run_id = $run_id and status <> 'missing'
)
where score is not null
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
    forget_metrics(connection, run_id)
    counts = insert_harness_scores(connection, run_id, judged)
    for ordinal, scorer in enumerate(scorers, start=len(judged.scorers)):
        if only is not None and scorer.title not in only:
            continue
        _delete_scores(connection, run_id, [scorer.title])
        if isinstance(scorer, FunctionScorer | JudgeScorer):
            if (given := functions.get(scorer.title)) is None:
                counts[scorer.title] = 0
                continue
            definition = given.definition
            scored = _insert_errors(connection, run_id, scorer) + _insert_rows(connection, run_id, given.scores)
        else:
            definition = define_scorer(scorer.kind)
            scored = _insert_scores(connection, run_id, scorer)
        counts[scorer.title] = scored
        if scored:
            arguments = scorer.model_dump(mode="json")
            _insert_scorer(connection, run_id, ordinal, scorer.title, definition, arguments)
    return counts


def check_scorers(scorers: Sequence[Scorer]) -> None:
    """Try patterns, SQL and functions of scorers, before the first prompt is sent. Raises SpecError."""
    for scorer in scorers:
        if isinstance(scorer, FunctionScorer):
            check_function(scorer)
    in_sql = [scorer for scorer in scorers if isinstance(scorer, (RegexMatch, SqlScorer))]
    if not in_sql:
        return
    with duckdb.connect() as connection:
        for scorer in in_sql:
            if isinstance(scorer, SqlScorer):
                _check_sql(connection, scorer)
            else:
                _check_pattern(connection, scorer)


def _check_sql(connection: duckdb.DuckDBPyConnection, scorer: SqlScorer) -> None:
    """Raise SpecError unless the SQL is one expression of a type that can be a number."""
    try:
        with _own_macro(connection, scorer):
            connection.execute(
                "with nothing as (select null::varchar as answer, null::varchar as target, '{}' as metadata_json) "  # noqa: S608 - the call is ours
                f"select {_OWN_CALL} from nothing"
            )
    except duckdb.Error as error:
        raise SpecError(
            f"scorers: the SQL of {scorer.title}{f' ({scorer.file})' if scorer.file else ''} cannot be used: "
            f"{_reason(error)}. hint: give one expression over answer, target and row, without a subquery, such as "
            "1 - abs(answer::double - target::double)."
        ) from None


def _check_pattern(connection: duckdb.DuckDBPyConnection, scorer: RegexMatch) -> None:
    """Check that RE2 compiles the pattern and that it has the group.

    The empty alternative always matches, so that a missing group is an error.
    """
    try:
        connection.execute("select regexp_matches('', $pattern)", {"pattern": scorer.pattern}).fetchall()
    except duckdb.Error as error:
        raise SpecError(
            f"scorers: the pattern {scorer.pattern!r} of {scorer.title} is not a valid RE2 pattern: {_reason(error)}. "
            "hint: use RE2 syntax, which has no look-around and no backreferences."
        ) from None
    try:
        pattern = {"pattern": f"(?:{scorer.pattern})|", "number": scorer.group}
        connection.execute("select regexp_extract_all('', $pattern, $number)", pattern).fetchall()
    except duckdb.Error as error:
        raise SpecError(
            f"scorers: the pattern {scorer.pattern!r} of {scorer.title} has no group {scorer.group}: {_reason(error)}. "
            "hint: put parentheses around the part to extract, or set group: 0 for the complete match."
        ) from None


def _reason(error: duckdb.Error) -> str:
    return str(error).splitlines()[0].partition(": ")[2].rstrip(".")


OWN_MACRO = "score_own"
_OWN_CALL = f"try(cast({OWN_MACRO}(answer, target, metadata_json::json) as double))"
_ANSWERS = """(
    select samples.*, metadata_json
    from (select * from stg_samples where run_id = $run_id and status = 'ok') as samples
    inner join (select run_id, prompt_id, occurrence, metadata_json from prompt where run_id = $run_id) as prompts
        using (run_id, prompt_id, occurrence)
)"""
_INSERT_OWN = f"""
insert into scores
select
    run_id, $scorer, prompt_id, occurrence, repeat_index,
    case when is_valid then value else 0 end,
    null,
    case
        when is_valid then 'the SQL gave ' || value
        when value is null then 'the SQL gave no number: NULL, or an error'
        else 'the SQL gave ' || value || '; expected a number from 0 to 1'
    end,
    case when not is_valid then '{SCORER_ERROR}' end,
    null
from (
    select *, coalesce(value between 0 and 1, false) as is_valid
    from (select *, {_OWN_CALL} as value from {_ANSWERS})
    where value is not null or target is not null
)
"""  # noqa: S608 - the names are ours
_INSERT_VERDICTS = f"""
insert into scores
select
    run_id, $scorer, prompt_id, occurrence, repeat_index, score.value, score.extracted, score.explanation,
    case when score.extracted is null then '{UNREADABLE}' end,
    null
from (
    select
        *,
        score_verdict(
            answer,
            coalesce(
                json_extract_string(metadata_json, '$.other.run_id') is not null
                and json_extract_string(metadata_json, '$.first') = 'b',
                false
            ),
            $field, $reason, map($names::varchar[], $numbers::double[]), $scale::double[]
        ) as score
    from {_ANSWERS}
)
"""  # noqa: S608 - the names are ours
_OWN_INSERTS = {"sql": _INSERT_OWN, "verdict": _INSERT_VERDICTS}
"""Statements of the kinds that read metadata, for answers; errors are scored by `_INSERT`."""


@contextmanager
def _own_macro(connection: duckdb.DuckDBPyConnection, scorer: SqlScorer) -> Iterator[None]:
    """Define the spec's expression as a macro during the block. Raises duckdb.Error for anything but one expression."""
    statement = f"create or replace temp macro {OWN_MACRO}(answer, target, row) as (\n{scorer.sql}\n)"
    if len(connection.extract_statements(statement)) != 1:
        raise duckdb.ParserException("Parser Error: it closes a parenthesis that it does not open")
    connection.execute(statement)
    try:
        yield
    finally:
        connection.execute(f"drop macro if exists temp.{OWN_MACRO}")


def _insert_errors(connection: duckdb.DuckDBPyConnection, run_id: str, scorer: ScorerPart) -> int:
    """Insert scores for samples that are errors; return their number."""
    values = {"run_id": run_id, "scorer": scorer.title, "needs_target": scorer.needs_target}
    return int(connection.execute(_INSERT.format(call="null"), values).fetchall()[0][0])


def _insert_rows(connection: duckdb.DuckDBPyConnection, run_id: str, scores: Sequence[HarnessScore]) -> int:
    columns = {name: [score[place] for score in scores] for place, name in enumerate(HarnessScore._fields)}
    types: dict[str, Any] = {"value": pa.float64(), "occurrence": pa.int32(), "repeat_index": pa.int32()}
    table = pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})
    connection.register("given_scores", table)
    try:
        connection.execute("insert into scores by name select ? as run_id, * from given_scores", [run_id])
    finally:
        connection.unregister("given_scores")
    return len(scores)


def _insert_scores(connection: duckdb.DuckDBPyConnection, run_id: str, scorer: Scorer) -> int:
    if isinstance(scorer, SqlScorer | VerdictScorer):
        own: dict[str, Any] = {"run_id": run_id, "scorer": scorer.title}
        if isinstance(scorer, VerdictScorer):
            values = scorer.values or {}
            own |= {"field": scorer.field, "reason": scorer.reason, "scale": scorer.scale or []}
            own |= {"names": list(values), "numbers": list(values.values())}
        with _own_macro(connection, scorer) if isinstance(scorer, SqlScorer) else nullcontext():
            scored = int(connection.execute(_OWN_INSERTS[scorer.kind], own).fetchall()[0][0])
        return scored + _insert_errors(connection, run_id, scorer)
    call, arguments = write_call(scorer)
    given = {"run_id": run_id, "scorer": scorer.title, "needs_target": scorer.needs_target, **arguments}
    if _counts_from_one(connection, run_id, scorer):
        call = call.replace("target", _PLACE_FROM_ZERO)
    with json_match.json_function(connection, scorer):
        return int(connection.execute(_INSERT.format(call=call), given).fetchall()[0][0])


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
    """Return the digest of a scorer's code without comments, which decides its scores together with its arguments."""
    models = list_models()
    macros = {model.name: _read_code(model.text) for model in models.values() if model.folder == "scorers"}
    code = {"insert": _INSERT, "stg_samples": _read_code(models["stg_samples"].text)}
    if kind == "json":
        code["json"] = inspect.getsource(json_match)
    if kind in ("choice", "loglikelihood"):
        code["places"] = _COUNTS_FROM_ONE + _PLACE_FROM_ZERO
    if kind in _OWN_INSERTS:
        code[kind] = _OWN_INSERTS[kind]
    words = {"make_score", f"score_{kind}"}
    while found := (words & macros.keys()) - code.keys():
        code.update({name: macros[name] for name in found})
        words = {word for name in found for word in re.findall(r"\w+", macros[name])}
    return digest_json(code)


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
    function = FUNCTION_KINDS.get(kind)
    if function is None:
        return define_scorer(kind)
    try:
        return define_function(function.model_validate_json(arguments_json))
    except (SpecError, ValueError):
        return None


def write_call(scorer: Scorer) -> tuple[str, dict[str, Any]]:
    """Return the macro call over the columns of stg_samples, and the values of its parameters.

    The fields of a scorer are the parameters of `score_KIND`, in order.
    """
    if isinstance(scorer, JsonMatch):
        return json_match.CALL, {}
    values = {name: getattr(scorer, name) for name in type(scorer).model_fields if name not in ("name", "kind")}
    read = "options, option_logprobs, option_tokens" if isinstance(scorer, Loglikelihood) else "answer"
    return f"score_{scorer.kind}({', '.join([read, 'target', *(f'${name}' for name in values)])})", values
