"""False-positive and detection rates of a leaderboard's winners on simulated scores.

    python -m benchmarks.false_winners [--boards 1000] [--seed 1]

Leaderboards are simulated and judged as the report does (`compare_entries`). Each prompt has
a difficulty drawn from Beta(1.4, 0.6), and each model's answers are drawn from it. Scores are right or wrong; or
`partial`, often between 0 and 1, like F1; or `rare`: all models are nearly always right.

With equal models, a leaderboard is wrong if it calls any pair different, as a winner or a rank interval narrower than
all ranks requires such a call. With a leader, one model is better than all others, which are equal: it is found if it
is called the winner; a leaderboard is wrong if it calls any other pair different. For comparison, `uncorrected` calls
each pair with p of at most 0.05 different.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import duckdb
import numpy as np

from assayline.comparison.board import compare_entries
from assayline.store.database import apply_schema

BOARDS_AT_ONCE = 100
LEADER = 0
Dice = np.random.Generator
Scores = np.ndarray
"""Shape: leaderboards × tasks × models × prompts × repeats."""


@dataclass(frozen=True)
class Case:
    """Parameters of simulated leaderboards."""

    models: int = 8
    prompts: int = 200
    repeats: int = 1
    tasks: int = 1
    scores: str = "binary"
    lead: float = 0.0
    """Lead of the first model over the others, in points of the mean score, on every task."""


EQUAL = [
    Case(),
    Case(models=3),
    Case(prompts=30),
    Case(prompts=60, repeats=5),
    Case(tasks=3, models=4),
    Case(scores="partial"),
    Case(scores="partial", prompts=20),
    Case(scores="rare"),
    Case(scores="rare", prompts=60, repeats=5),
]
LED = [*(Case(lead=lead) for lead in (0.05, 0.1, 0.15)), Case(prompts=1000, lead=0.05)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=1000, help="leaderboards per case (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started_s = time.process_time()
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    report: dict[str, Any] = {"benchmark": "false_winners", "boards": options.boards, "seed": options.seed}
    print("models  prompts  repeats  tasks  scores   lead  found  wrong  uncorrected", flush=True)
    report["equal"] = list(measure(connection, EQUAL, options.boards, options.seed))
    report["led"] = list(measure(connection, LED, max(1, options.boards // 4), options.seed + 1))
    report["cpu_seconds"] = round(time.process_time() - started_s)
    print(json.dumps(report))


def measure(
    connection: duckdb.DuckDBPyConnection, cases: list[Case], boards: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Return the shares of leaderboards that find the leader, that call a false difference, and that do uncorrected."""
    for number, case in enumerate(cases):
        dice = np.random.default_rng([seed, number])
        found = wrong = uncorrected = 0
        for first in range(0, boards, BOARDS_AT_ONCE):
            scores = draw(dice, case, min(BOARDS_AT_ONCE, boards - first))
            for row in judge(connection, scores, has_leader=case.lead > 0):
                found += row["is_found"]
                wrong += row["is_wrong"]
                uncorrected += row["is_wrong_uncorrected"]
        shares = {
            "found_share": found / boards,
            "wrong_share": wrong / boards,
            "uncorrected_share": uncorrected / boards,
        }
        print(
            f"{case.models:>6} {case.prompts:>8} {case.repeats:>8} {case.tasks:>6}  {case.scores:<7} {case.lead:>5.0%} "
            f"{shares['found_share']:>6.1%} {shares['wrong_share']:>6.1%} {shares['uncorrected_share']:>12.1%}",
            flush=True,
        )
        yield {**asdict(case), "boards": boards, **shares}


def draw(dice: Dice, case: Case, boards: int) -> Scores:
    """Draw scores of `boards` leaderboards."""
    shape = (boards, case.tasks, 1, case.prompts, 1)
    ease = dice.beta(*((40, 1) if case.scores == "rare" else (1.4, 0.6)), shape)
    chance = np.broadcast_to(ease, (boards, case.tasks, case.models, case.prompts, case.repeats)).copy()
    # Scaled toward 1: gains on hard prompts make up for easy prompts, which cannot gain.
    chance[:, :, LEADER] += case.lead * (1 - chance[:, :, LEADER]) / (1 - 0.7)
    right = (dice.random(chance.shape) < chance).astype(float)
    if case.scores != "partial":
        return right
    part = dice.beta(2, 1, chance.shape)
    return np.where(dice.random(chance.shape) < 0.5, right, right * part)


def judge(connection: duckdb.DuckDBPyConnection, scores: Scores, *, has_leader: bool) -> list[dict[str, bool]]:
    """Judge each leaderboard as the report does."""
    _, tasks, models, prompts, repeats = scores.shape
    connection.execute("begin")
    connection.register("drawn_scores", {"value": scores.ravel()})
    connection.execute(
        f"""
        create temp table placed_scores as
        with number_scores as (select value, row_number() over () - 1 as place from drawn_scores),
        find_samples as (
            select
                value,
                place % {repeats} as repeat_index,
                place // {repeats} % {prompts} as prompt,
                place // {repeats * prompts} % {models} as model,
                place // {repeats * prompts * models} % {tasks} as task,
                place // {repeats * prompts * models * tasks} as board
            from number_scores
        )
        select *, printf('%d-%d-%03d', board, task, model) as run_id from find_samples
        """  # noqa: S608 - numbers alone
    )
    connection.execute(
        "insert into scores "
        "select run_id, 'score', prompt::varchar, 0, repeat_index, value, null, null, null from placed_scores"
    )
    connection.execute(
        "insert into scorers select distinct run_id, 'score', 'exact_match', 0, '{}', '0', timestamp '2026-01-01', '0' "
        "from placed_scores"
    )
    entries: dict[int, list[dict[str, str]]] = {}
    for board, task, run_id in connection.execute(
        "select distinct board, task, run_id from placed_scores order by all"
    ).fetchall():
        entries.setdefault(board, []).append({"task": str(task), "run_id": run_id, "scorer": "score"})
    found = [_mark(compare_entries(connection, listed), has_leader=has_leader) for listed in entries.values()]
    connection.execute("rollback")
    return found


def _mark(pairs: list[dict[str, Any]], *, has_leader: bool) -> dict[str, bool]:
    leader = f"-{LEADER:03d}"
    led = [pair for pair in pairs if has_leader and leader in (pair["candidate"][-4:], pair["baseline"][-4:])]
    equal = [pair for pair in pairs if pair not in led]
    return {
        "is_found": bool(led)
        and all(pair["verdict"] == ("better" if pair["candidate"].endswith(leader) else "worse") for pair in led),
        "is_wrong": any(pair["verdict"] in ("better", "worse") for pair in equal),
        "is_wrong_uncorrected": any(pair["p_value"] is not None and pair["p_value"] <= 0.05 for pair in equal),
    }


if __name__ == "__main__":
    main()
