"""What a report shows of a run beside its baseline. Read without `stage_run`, which leaves one run's requests only."""

from dataclasses import dataclass

import duckdb

from assayline.store.models import read_rows
from assayline.store.report import Row, cut_and_count

FLIPPED = 4
"""Prompts shown that became worse, and as many that became better."""


@dataclass(frozen=True, slots=True)
class ComparisonRows:
    """Two runs: the report's is the candidate."""

    baseline: Row
    """The baseline's row of runs."""
    environments: tuple[str, str]
    """Machine and versions of candidate and baseline."""
    scores: list[Row]
    metrics: list[Row]
    worse: list[Row]
    better: list[Row]


def read_comparison(connection: duckdb.DuckDBPyConnection, candidate: str, baseline: str) -> ComparisonRows:
    """Reads two runs that the database has."""
    (run,) = read_rows(connection, "select * from runs where run_id = ?", baseline)
    environments = {
        row["run_id"]: row["environment"]
        for row in read_rows(
            connection, "select run_id, environment from run_conditions where run_id in (?, ?)", candidate, baseline
        )
    }
    return ComparisonRows(
        baseline=run,
        environments=(environments[candidate], environments[baseline]),
        scores=read_rows(connection, _SCORES, candidate, baseline, candidate),
        metrics=read_rows(connection, _SPEEDS, candidate, baseline),
        worse=_read_flipped(connection, candidate, baseline, "difference < 0", "asc"),
        better=_read_flipped(connection, candidate, baseline, "difference > 0", "desc"),
    )


def _read_flipped(
    connection: duckdb.DuckDBPyConnection, candidate: str, baseline: str, which: str, direction: str
) -> list[Row]:
    """Prompts whose score changed by the candidate's first scorer, with an answer of each run."""
    query = f"""
    with

    choose_prompts as (
        select *
        from compare_prompts(?, ?)
        where {which} and scorer = (select scorer from accuracy where run_id = ? order by ordinal limit 1)
        order by difference {direction}, prompt_id, occurrence
        limit ?
    ),

    read_answers as (
        select
            run_id,
            prompt_id,
            occurrence,
            arg_min(coalesce(answer, error_kind), repeat_index) as answer
        from stg_samples
        where run_id in (?, ?)
        group by run_id, prompt_id, occurrence
    )

    select
        choose_prompts.scorer,
        choose_prompts.prompt_id,
        choose_prompts.candidate_value,
        choose_prompts.baseline_value,
        choose_prompts.difference,
        {cut_and_count("choose_prompts.target")},
        {cut_and_count("choose_prompts.messages_json")},
        {cut_and_count("ours.answer", "candidate_answer")},
        {cut_and_count("theirs.answer", "baseline_answer")}
    from choose_prompts
    left join read_answers as ours
        on ours.run_id = ?
        and ours.prompt_id = choose_prompts.prompt_id
        and ours.occurrence = choose_prompts.occurrence
    left join read_answers as theirs
        on theirs.run_id = ?
        and theirs.prompt_id = choose_prompts.prompt_id
        and theirs.occurrence = choose_prompts.occurrence
    order by choose_prompts.difference {direction}, choose_prompts.prompt_id, choose_prompts.occurrence
    """  # noqa: S608 - names are ours
    values = (candidate, baseline, candidate, FLIPPED, candidate, baseline, candidate, baseline)
    return read_rows(connection, query, *values)


_SCORES = """
    select compared.*
    from compare_runs(?, ?) as compared
    left join scorers on scorers.run_id = ? and scorers.scorer = compared.scorer
    order by scorers.ordinal nulls last, compared.scorer
"""
_SPEEDS = """
    select * from compare_metrics(?, ?) where metric <> 'accuracy' order by unit = 's', metric
"""
