"""What a report shows of a run beside its baseline. Read without `stage_run`, which leaves one run's requests only."""

import json
from dataclasses import dataclass

from assayline.comparison.queries import choose_pairing, read_overlaps, say_pairing
from assayline.report.run.rows import cut_and_count
from assayline.spec.criteria import GateSpec
from assayline.store.database import Connection, Row, read_rows
from assayline.store.kept import read_kept

FLIPPED = 4
"""Prompts shown that became worse, and as many that became better."""


@dataclass(frozen=True, slots=True)
class ComparisonRows:
    """Two runs: the report's is the candidate."""

    baseline: Row
    """The baseline's row of runs."""
    pairing: str
    """How their prompts are paired, in words; empty if by prompt."""
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
    query = "select * from runs where run_id = ?"
    (run,), (own,) = (read_rows(connection, query, run_id) for run_id in (baseline, candidate))
    specs = [json.loads(row["spec_json"]) for row in (own, run)]
    wanted = specs[0].get("gate", {})
    overlaps = read_overlaps(connection, candidate, baseline, wanted.get("min_overlap", GateSpec().min_overlap))
    pairing = choose_pairing(overlaps, wanted.get("pair_by", "auto"))
    query = "select run_id, environment from run_conditions where run_id in (?, ?)"
    with read_kept(connection, candidate, baseline):
        found = read_rows(connection, query, candidate, baseline)
        environments = {row["run_id"]: row["environment"] for row in found}
        return ComparisonRows(
            baseline=run,
            pairing=say_pairing(pairing, *specs),
            environments=(environments[candidate], environments[baseline]),
            limits=read_rows(connection, _LIMITS, candidate, baseline),
            scores=read_rows(connection, _SCORES, candidate, baseline, pairing, candidate),
            metrics=read_rows(connection, _SPEEDS, candidate, baseline),
            worse=read_rows(connection, _FLIPS, candidate, baseline, 1, FLIPPED, pairing),
            better=read_rows(connection, _FLIPS, candidate, baseline, -1, FLIPPED, pairing),
        )


_LIMITS = """
    select * from verdicts where run_id = ? and baseline_run_id = ?
    qualify rank() over (order by judged_at desc) = 1
    order by ordinal
"""
_SCORES = """
    select compared.*
    from compare_runs(?, ?, pair_by := ?) as compared
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
    from show_flips(?, ?, ?, ?, pair_by := ?)
"""  # noqa: S608 - names are ours
