"""How much of the baseline's quality each configuration of a benchmark keeps. The view `frontier` joins speed and cost.

Scores are paired by prompt, repeats averaged first, so that copies of one deterministic answer count once. Over several
tasks, the weighted mean of the differences is judged against the weighted mean of the limits. The verdicts on all
configurations hold together: p-values of a drop beyond the limit are Holm's, and intervals of the differences
Bonferroni's, because the cheapest one that passes is chosen.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from assayline.benchmark.campaign import Campaign
from assayline.comparison.queries import compare_scores, read_noise, read_side, store_comparisons
from assayline.spec.criteria import GateSpec
from assayline.stats.families import adjust_holm
from assayline.stats.pairs import POWER, bound_ratio, find_lost, judge_mean
from assayline.stats.worse import LEVEL, decide_worse
from assayline.store.database import Connection, Row, is_read_only, read_rows

NORMAL = NormalDist()
KIND = "frontier"


def name_configs(runs: Sequence[Row], plan: Campaign | None) -> dict[str, tuple[str, str]]:
    """Return the task and the label of each configuration of a benchmark, by its config_id, in the plan's order.

    Without a plan, such as after `gate --remeasure`, a prompt set is a task, and a label the run's name, or its
    config_id if several have the name.
    """
    if plan and not plan.profile:
        return {cell.config_id: (cell.task or plan.name, cell.variant) for cell in plan.cells}
    named = {run["config_id"]: (run["prompt_set"], run["name"]) for run in runs}
    uses = Counter(named.values())
    return {one: name if uses[name] == 1 else (name[0], f"configuration {one[:8]}") for one, name in named.items()}


def store_frontier(connection: Connection, benchmark_id: str, plan: Campaign | None) -> None:
    """Compare each configuration with the plan's baseline, and store the rows that `frontier` reads.

    The default is the first with a run; nothing is compared with a baseline that has none. A reader stores nothing, and
    without the plan the rows stay.
    """
    if is_read_only(connection) or plan is None:
        return
    query = "select * from runs where benchmark_id = ? and state <> 'running' order by started_at, run_id"
    runs = read_rows(connection, query, benchmark_id)
    groups: dict[str, dict[str, list[Row]]] = {}
    for config_id, (task, label) in name_configs(runs, plan).items():
        if of_config := [run for run in runs if run["config_id"] == config_id]:
            groups.setdefault(label, {})[task] = of_config
    if not groups:
        return
    base = groups.get(plan.baseline, {}) if plan.baseline else next(iter(groups.values()))
    weights = {cell.task: cell.weight for cell in plan.cells}
    noise = {
        row["config_id"]: row["noise_floor"]
        for row in read_noise(connection, "benchmark_id = ? and metric = 'accuracy'", benchmark_id)
    }
    rows: list[Row] = []
    means: list[Row] = []
    for label, tasks in groups.items():
        parts = {
            task: _compare_task(connection, runs, base[task], is_base=tasks is base)
            for task, runs in tasks.items()
            if task in base
        }
        for task, part in parts.items():
            sides = {"run_id": tasks[task][-1]["run_id"], "baseline_run_id": base[task][-1]["run_id"]}
            rows.append({**sides, "detail": label, **{name: part[name] for name in _RECOVERY}})
        if parts and all(part["value"] is not None for part in parts.values()) and parts.keys() == base.keys():
            shares = [weights.get(task, 1.0) for task in parts]
            shares = [share / math.fsum(shares) for share in shares]
            floors = [noise.get(tasks[task][0]["config_id"]) for task in parts]
            sides = {name: rows[-1][name] for name in ("run_id", "baseline_run_id", "detail")}
            means.append({**sides, **_average(list(parts.values()), shares, floors)})
    judge_family(means)
    for mean in means:
        common = {name: mean[name] for name in ("run_id", "baseline_run_id", "detail", "n", "verdict", "p_value")}
        rows += [{**common, **mean[metric], "metric": metric} for metric in ("mean_accuracy", "mean_recovery")]
        if mean["floor"] is not None:
            rows.append({**common, "metric": "noise_floor", "value": mean["floor"]})
    connection.execute(
        "delete from comparisons where kind = ? and run_id in (select run_id from runs where benchmark_id = ?)",
        [KIND, benchmark_id],
    )
    empty = dict.fromkeys(("value", "baseline_value", "difference", "low", "high", "p_value", "n"))
    store_comparisons(connection, KIND, [{**empty, "method": "prompts", **row} for row in rows])


_RECOVERY = ("metric", "value", "baseline_value", "difference", "low", "high", "n", "verdict")


def _compare_task(connection: Connection, runs: Sequence[Row], base: Sequence[Row], *, is_base: bool) -> Row:
    """Compare the accuracy of the completed runs of two configurations on one task; values are None without scores."""
    new, old = ([run["run_id"] for run in side if run["state"] == "completed"] for side in (runs, base))
    limit = (json.loads(base[-1]["spec_json"]).get("gate") or {}).get("max_accuracy_drop")
    found: Row = dict.fromkeys((*_RECOVERY, "low_difference", "high_difference"))
    found |= {"metric": "recovery", "verdict": "too_few"}
    found |= {"limit": GateSpec().max_accuracy_drop if limit is None else limit}
    scorers = read_side(connection, new[-1]).scorers if new and old else []
    row = compare_scores(connection, new[-1], old[-1], "auto", old, new).get(scorers[0]) if scorers else None
    if row is None or not row["prompts"]:
        return found
    found |= {"value": row["candidate_mean"], "baseline_value": row["baseline_mean"], "n": row["prompts"], "lost": 0.0}
    if row["baseline_mean"]:
        found["difference"] = row["candidate_mean"] / row["baseline_mean"]
    if is_base:
        return {**found, "verdict": "baseline"}
    found["lost"], (found["low"], found["high"]) = find_lost(row), bound_ratio(row)
    return {**found, "low_difference": row["low"], "high_difference": row["high"], "verdict": "compared"}


def _average(parts: Sequence[Row], shares: Sequence[float], floors: Sequence[float | None]) -> Row:
    """Average the parts of a configuration; the end of an interval is √(Σ (share × distance)²) from the mean."""

    def average(name: str) -> float:
        return math.fsum(share * part[name] for share, part in zip(shares, parts, strict=True))

    value, base, limit = average("value"), average("baseline_value"), average("limit")
    accuracy: Row = {"value": value, "baseline_value": base, "difference": value - base}
    recovery: Row = {**accuracy, "difference": None}
    is_whole = all(part["difference"] is not None for part in parts)
    if is_whole:
        recovery["difference"] = average("difference")
    ends = [(part["low_difference"], part["high_difference"]) for part in parts]
    known = [(low, high) for low, high in ends if low is not None]
    differences = [part["value"] - part["baseline_value"] for part in parts]
    judged: Row | None = judge_mean(shares, differences, known, limit) if len(known) == len(parts) else None
    if is_whole and all(part["low"] is not None for part in parts):
        reach = {
            end: math.hypot(
                *(share * (part[end] - part["difference"]) for share, part in zip(shares, parts, strict=True))
            )
            for end in ("low", "high")
        }
        recovery |= {"low": recovery["difference"] - reach["low"], "high": recovery["difference"] + reach["high"]}
    floor = [(share * each) ** 2 for share, each in zip(shares, floors, strict=True) if each is not None]
    return {
        "n": sum(part["n"] for part in parts),
        "mean_accuracy": accuracy,
        "mean_recovery": recovery,
        "floor": math.sqrt(math.fsum(floor)) if len(floor) == len(parts) else None,
        "limit": limit,
        "lost": average("lost"),
        "judged": judged,
        "p_value": judged and judged["p_value"],
        "verdict": "baseline" if parts[0]["verdict"] == "baseline" else "inconclusive",
    }


def judge_family(means: Sequence[Row]) -> None:
    """Set verdicts and intervals (mean_accuracy) of all configurations with a comparison (judged) as one family."""
    compared = [mean for mean in means if mean["judged"]]
    adjusted = adjust_holm(np.array([mean["judged"]["beyond_p"] for mean in compared]))
    for mean, p_beyond in zip(compared, adjusted.tolist(), strict=True):
        judged = mean["judged"]
        reach = find_simultaneous(len(compared)) * judged["error"]
        mean["mean_accuracy"] |= {"low": judged["center"] - reach, "high": judged["center"] + reach}
        most = mean["lost"] - mean["mean_accuracy"]["low"]
        mean["verdict"] = decide_worse(p_beyond, most, mean["limit"])


def find_simultaneous(configurations: int) -> float:
    """Return half the width, in standard errors, of intervals that all hold with 95% (Bonferroni)."""
    return -NORMAL.inv_cdf(LEVEL / 2 / configurations)


def count_prompts_to_decide(prompts: int, low: float, high: float, limit: float, configurations: int) -> int | None:
    """Return about how many prompts show with 80% power that a configuration is within the limit, if it is equal.

    The interval is that of `judge_family`. None for a limit of 0.
    """
    reach = find_simultaneous(configurations)
    error = (high - low) / (2 * reach)
    return int(float(f"{prompts * ((reach + NORMAL.inv_cdf(POWER)) * error / limit) ** 2:.2g}")) if limit > 0 else None
