"""What a report shows of a run beside its baseline. Read without `stage_run`, which leaves one run's requests only."""

from dataclasses import dataclass

from assayline.report.run.rows import cut_and_count
from assayline.store.database import Connection, Row, read_rows
from assayline.store.kept import read_kept

FLIPPED = 4
"""Prompts shown that became worse, and as many that became better."""


@dataclass(frozen=True, slots=True)
class ComparisonRows:
    """Two runs: the report's is the candidate."""

    baseline: Row
    """The baseline's row of runs."""
    environments: tuple[str, str]
    """Machine and versions of candidate and baseline."""
    limits: list[Row]
    """The newest verdict of a gate on these two runs, a row per limit; empty without one."""
    scores: list[Row]
    metrics: list[Row]
    worse: list[Row]
    better: list[Row]


def read_comparison(connection: Connection, candidate: str, baseline: str) -> ComparisonRows:
    """Reads two runs that the database has."""
    (run,) = read_rows(connection, "select * from runs where run_id = ?", baseline)
    query = "select run_id, environment from run_conditions where run_id in (?, ?)"
    with read_kept(connection, candidate, baseline):
        found = read_rows(connection, query, candidate, baseline)
        environments = {row["run_id"]: row["environment"] for row in found}
        return ComparisonRows(
            baseline=run,
            environments=(environments[candidate], environments[baseline]),
            limits=read_rows(connection, _LIMITS, candidate, baseline),
            scores=read_rows(connection, _SCORES, candidate, baseline, candidate),
            metrics=read_rows(connection, _SPEEDS, candidate, baseline),
            worse=read_rows(connection, _FLIPS, candidate, baseline, 1, FLIPPED),
            better=read_rows(connection, _FLIPS, candidate, baseline, -1, FLIPPED),
        )


_LIMITS = """
    select * from verdicts where run_id = ? and baseline_run_id = ?
    qualify rank() over (order by judged_at desc) = 1
    order by ordinal
"""
_SCORES = """
    select compared.*
    from compare_runs(?, ?) as compared
    left join scorers on scorers.run_id = ? and scorers.scorer = compared.scorer
    order by scorers.ordinal nulls last, compared.scorer
"""
_SPEEDS = """
    select * from compare_metrics(?, ?) where metric <> 'accuracy' order by unit = 's', metric
"""
_FLIPS = f"""
    select
        scorer, prompt_id, candidate_value, baseline_value, difference,
        {", ".join(map(cut_and_count, ("target", "messages_json", "candidate_answer", "baseline_answer")))}
    from show_flips(?, ?, ?, ?)
"""  # noqa: S608 - names are ours
