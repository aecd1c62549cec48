"""How much of the baseline's quality each configuration of a benchmark keeps. The view `frontier` joins speed and cost.

Scores are paired by prompt, repeats averaged first, so that copies of one deterministic answer count once. Over several
tasks, the weighted mean of the differences is judged against the weighted mean of the limits. The verdicts on all
configurations hold together: p-values of a drop beyond the limit are Holm's, and intervals of the differences
Bonferroni's, because the cheapest one that passes is chosen. By kl, readings of the baseline's answers are judged.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from assayline.benchmark.campaign import Campaign
from assayline.comparison.benchmarks import read_noise
from assayline.comparison.queries import compare_accuracy, store_comparisons
from assayline.spec.criteria import GateSpec, RereadLimit
from assayline.spec.file import parse_stored
from assayline.stats.families import adjust_family
from assayline.stats.pairs import POWER, Z, average_scores, bound_ratio
from assayline.stats.rereads import judge_reading, read_answers
from assayline.stats.worse import LEVEL, Comparison
from assayline.store.database import Connection, Row, is_read_only, read_rows
from assayline.store.measure import read_reading

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
    means: list[tuple[Row, Comparison, Comparison, float | None]] = []
    for label, tasks in groups.items():
        parts: list[Comparison] = []
        shared = [task for task in tasks if task in base]
        for task in shared:
            row: Row = {"run_id": tasks[task][-1]["run_id"], "baseline_run_id": base[task][-1]["run_id"]}
            found = _compare_task(connection, tasks[task], base[task])
            if found and tasks is base:
                found = replace(found, low=None, high=None, p_value=None, p_beyond=None)
            parts += [found] if found else []
            verdict = "too_few" if found is None else "baseline" if tasks is base else "compared"
            told = _find_recovery(found).as_row(verdict) if found else {"metric": "recovery", "verdict": verdict}
            rows.append({**_EMPTY, **told, **row, "detail": label})
        if parts and len(parts) == len(shared) == len(base):
            of_tasks = [weights.get(task, 1.0) for task in shared]
            shares = [share / math.fsum(of_tasks) for share in of_tasks]
            floors = [noise.get(tasks[task][0]["config_id"]) for task in shared]
            known = [(share * floor) ** 2 for share, floor in zip(shares, floors, strict=True) if floor is not None]
            floor = math.sqrt(math.fsum(known)) if len(known) == len(parts) else None
            mean = average_scores(parts, shares, "mean_accuracy")
            means.append((rows[-1], mean, _average_recoveries(mean, parts, shares), floor))
    judged = judge_family([mean for _, mean, *_ in means])
    for (row, _, recovery, floor), mean in zip(means, judged, strict=True):
        verdict = "baseline" if row["verdict"] == "baseline" else mean.judge()
        sides = {name: row[name] for name in ("run_id", "baseline_run_id", "detail")}
        common = {**sides, "p_value": mean.p_value}
        rows += [one.as_row(verdict) | common for one in (mean, recovery)]
        if floor is not None:
            rows.append({**_EMPTY, **common, "metric": "noise_floor", "value": floor, "verdict": verdict})
    if plan.quality == "kl" and base:
        rows += _judge_readings(connection, plan, groups, base)
    of_benchmark = "baseline_run_id in (select run_id from runs where benchmark_id = ?)"
    connection.execute(f"delete from comparisons where kind = ? and {of_benchmark}", [KIND, benchmark_id])  # noqa: S608
    store_comparisons(connection, KIND, rows)


_EMPTY = dict.fromkeys(("value", "baseline_value", "difference", "low", "high", "p_value", "n")) | {"method": "prompts"}


def _judge_readings(
    connection: Connection, plan: Campaign, groups: Mapping[str, Mapping[str, list[Row]]], base: Mapping[str, list[Row]]
) -> list[Row]:
    """Judge each configuration by the reading of its engine. The divergence of the baseline is the floor."""
    readings = {label: read_answers(read_reading(connection, run_id)) for label, run_id in plan.readings.items()}
    known = [reading for reading in readings.values() if reading]
    [own] = base.values()
    limit = parse_stored(own[-1]["spec_json"]).gate.reread or RereadLimit()
    rows = []
    for label, [runs] in ((label, tasks.values()) for label, tasks in groups.items()):
        sides = {"run_id": runs[-1]["run_id"], "baseline_run_id": own[-1]["run_id"]}
        row = {**_EMPTY, **sides, "metric": "kl", "detail": label, "method": "reread", "verdict": "too_few"}
        if runs is own:
            row |= {"verdict": "baseline"} | ({"value": known[0].floor, "n": known[0].prompts} if known else {})
        elif found := readings.get(label):
            verdict, p_value, _ = judge_reading(found, limit.max_kl, tests=len(known))
            values = {"value": found.kl.value, "baseline_value": found.floor, "difference": found.ratio[0]}
            row |= values | dict(zip(("low", "high"), found.ends, strict=True))
            row |= {"run_id": plan.readings[label], "p_value": p_value, "n": found.prompts, "verdict": verdict}
        rows.append(row)
    return rows


def _compare_task(connection: Connection, runs: Sequence[Row], base: Sequence[Row]) -> Comparison | None:
    """Compare the accuracy of the completed runs of two configurations on one task; None without scores."""
    new, old = ([run["run_id"] for run in side if run["state"] == "completed"] for side in (runs, base))
    limit = (json.loads(base[-1]["spec_json"]).get("gate") or {}).get("max_accuracy_drop")
    return compare_accuracy(connection, new, old, GateSpec().max_accuracy_drop if limit is None else limit)


def _find_recovery(found: Comparison) -> Comparison:
    """Return the accuracy as a share of the baseline's; without an interval if the difference has none."""
    low, high = bound_ratio(found.pairs) if found.ends else (None, None)
    ratio = found.value / found.baseline_value if found.baseline_value else None
    return replace(found, metric="recovery", difference=ratio, low=low, high=high, p_value=None)


def _average_recoveries(mean: Comparison, parts: Sequence[Comparison], shares: Sequence[float]) -> Comparison:
    """Average the recoveries; the end of an interval is √(Σ (share × distance)²) from the mean."""
    recoveries = list(map(_find_recovery, parts))
    ratios = [one.difference for one in recoveries if one.difference is not None]
    found = replace(mean, metric="mean_recovery", difference=None, low=None, high=None)
    if len(ratios) < len(parts):
        return found
    ratio = math.fsum(share * one for share, one in zip(shares, ratios, strict=True))
    reach = []
    for share, one, own in zip(shares, recoveries, ratios, strict=True):
        if one.low is None or one.high is None:
            return replace(found, difference=ratio)
        reach.append((share * (own - one.low), share * (one.high - own)))
    below, above = (math.hypot(*side) for side in zip(*reach, strict=True))
    return replace(found, difference=ratio, low=ratio - below, high=ratio + above)


def judge_family(means: Sequence[Comparison]) -> list[Comparison]:
    """Return means of scores as one family: p-values are Holm's, and intervals of the differences hold together."""
    tested = [mean for mean in means if mean.ends]
    wider = find_simultaneous(max(1, len(tested))) / Z
    adjusted = iter(adjust_family(tested))

    def widen(found: Comparison) -> Comparison:
        low, high = found.low or 0.0, found.high or 0.0
        center, reach = (low + high) / 2, wider * (high - low) / 2
        return replace(found, low=center - reach, high=center + reach)

    return [widen(next(adjusted)) if mean.ends else mean for mean in means]


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
