"""Coverage, false verdicts and power of assayline's statistics on simulated data, in parts.

    python -m benchmarks.statistics [--parts verdicts,load,ratio,nights,noise,suite,clusters] [--seed 1]

Each part prints a table per question and returns its rows; the last line is all of them as JSON. A part takes at most
four minutes of CPU.

Part `verdicts` simulates with NumPy what SQL computes, after it has compared some cases with the SQL; less than a
minute of CPU: the gate's verdict on accuracy, for scores of 0 and 1 asked once and for means of samples.

Part `load`: intervals of latency percentiles in an M/M/1 queue (sojourn times, which are exponential). `held` is the
share of the intervals `given` that hold the true percentile.

Part `ratio`: the interval of the cost per right answer, where hard prompts have longer answers. `fixed` takes the cost
as given, `by_prompt` ignores clusters, `now` counts them.

Part `nights`: false and true failures over a schedule; see benchmarks.nights.

Part `noise`: how often equal runs differ by more than the noise floor (`benchmarks.statistics_noise`).

Part `suite`: decisions of suites with critical and supporting evaluations; see benchmarks.statistics_suite.

Part `clusters`: intervals and verdicts over clusters of unequal size; see benchmarks.statistics_clusters.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import duckdb
import numpy as np
from scipy.special import stdtrit
from scipy.stats import binom

from assayline.comparison.gate import Check, judge_scores
from assayline.comparison.queries import compare_scores
from assayline.spec.criteria import GateSpec
from assayline.stats.pairs import judge_difference
from assayline.store.database import apply_schema
from benchmarks import nights, statistics_clusters, statistics_noise
from benchmarks.statistics_suite import measure_suites

Dice = np.random.Generator
Rows = list[dict[str, Any]]
LIMITS = GateSpec()
LIMIT = LIMITS.max_accuracy_drop
Z = 1.959963984540054
BOTH = 1.959963984540054 + 0.8416212335729143


class Pairs(NamedTuple):
    """Pairs of scores of 0 and 1: how many, and in how many the candidate is worse or better."""

    prompts: int
    worse: int
    better: int


@cache
def judge_pairs(pairs: Pairs) -> str:
    """Judge as the gate does, from a row as compare_runs has it."""
    return judge_scores(compare_pairs(pairs), LIMITS).verdict


@cache
def compare_pairs(pairs: Pairs) -> dict[str, Any]:
    """Compute the row of compare_runs."""
    n, worse, better = pairs
    padded, spread = (better - worse) / (n + 2), (better + worse + 2) / (n + 2)
    half = Z * math.sqrt((spread - padded**2) / (n + 2))
    row = {
        "scorer": "s",
        "same_scorer": None,
        "prompts": n,
        "clusters": n,
        "effective_pairs": float(n),
        "mean_square": (worse + better) / n,
        "worse_prompts": worse,
        "better_prompts": better,
        "is_proportion": True,
        "error_pairs": 0,
        "baseline_mean": 0.7,
        "candidate_mean": 0.7 + (better - worse) / n,
        "difference": (better - worse) / n,
        "low": max(-1.0, padded - half),
        "high": min(1.0, padded + half),
        "standard_error": None,
        "different_clusters": worse + better,
    }
    return row | judge_difference(row)


def check_against_sql() -> None:
    """Raise unless compare_runs has these rows."""
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    for pairs in (Pairs(155, 12, 2), Pairs(40, 0, 0), Pairs(20, 7, 0), Pairs(200, 3, 11)):
        n, worse, better = pairs
        connection.execute("delete from raw.scores")
        for run_id, first in (("new", (0, 1)), ("old", (1, 0))):
            values = [first[0]] * worse + [first[1]] * better + [1] * (n - worse - better)
            connection.execute(
                "insert into raw.scores (run_id, scorer, prompt_id, occurrence, repeat_index, value) "
                "select ?, 's', unnest(range(?)), 0, 0, unnest(?::double[])",
                [run_id, n, values],
            )
        found, expected = compare_scores(connection, "new", "old")["s"], compare_pairs(pairs)
        for name, value in expected.items():
            if name not in ("baseline_mean", "candidate_mean", "standard_error"):
                same = np.isclose(found[name], value) if isinstance(value, float) else found[name] == value
                assert same, f"{pairs}: {name} is {found[name]} in SQL, {value} here"


def draw_pairs(dice: Dice, prompts: int, worse: float, better: float, cases: int) -> dict[Pairs, int]:
    """Draw comparisons and count equal ones."""
    drawn = dice.multinomial(prompts, [worse, better, 1 - worse - better], cases)
    found, counts = np.unique(drawn[:, :2], axis=0, return_counts=True)
    return {Pairs(prompts, int(w), int(b)): int(c) for (w, b), c in zip(found, counts, strict=True)}


def share_of(drawn: dict[Pairs, int], is_hit: Callable[[Pairs], bool]) -> float:
    """Return the share of comparisons with a property."""
    return sum(times for pairs, times in drawn.items() if is_hit(pairs)) / sum(drawn.values())


def measure_false_passes(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Answers that are equal except for the true drop, as at temperature 0: how often the gate passes it."""
    for prompts, drop in itertools.product((20, 50, 100, 200), (0.02, 0.03, 0.05)):
        drawn = draw_pairs(dice, prompts, drop, 0, cases)
        yield {
            "prompts": prompts,
            "drop": drop,
            "pass": share_of(drawn, lambda pairs: judge_pairs(pairs) == "pass"),
        }


def measure_verdicts(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Verdicts by prompts, share of answers that differ either way, and true drop beyond it."""
    for prompts, churn, drop in itertools.product(
        (50, 100, 200, 500, 1000, 2000), (0.01, 0.05, 0.15), (0.0, LIMIT, 0.05, 0.1)
    ):
        drawn = draw_pairs(dice, prompts, churn + drop, churn, cases)
        yield {
            "prompts": prompts,
            "churn": churn,
            "drop": drop,
            "fail": share_of(drawn, lambda pairs: judge_pairs(pairs) == "fail"),
            "pass": share_of(drawn, lambda pairs: judge_pairs(pairs) == "pass"),
        }


def measure_coverage(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """How often the interval holds the true difference."""
    for prompts, churn, drop in itertools.product((20, 50, 200, 1000), (0.01, 0.05, 0.2), (0.0, 0.05)):
        drawn = draw_pairs(dice, prompts, churn + drop, churn, cases)

        def holds(pairs: Pairs, drop: float = drop) -> bool:
            row = compare_pairs(pairs)
            return bool(row["low"] <= -drop <= row["high"])

        yield {"prompts": prompts, "churn": churn, "drop": drop, "held": share_of(drawn, holds)}


def measure_power(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """How often a drop is found that is the smallest found with 80% power at its own discordance."""
    for prompts, discordant in itertools.product((50, 100, 200, 1000), (0.05, 0.1, 0.3)):
        drop = max(BOTH * np.sqrt(discordant / prompts), BOTH**2 / prompts)
        both = max(discordant, drop)
        drawn = draw_pairs(dice, prompts, (both + drop) / 2, max(0.0, (both - drop) / 2), cases)
        yield {
            "prompts": prompts,
            "discordant": discordant,
            "drop": round(float(drop), 4),
            "found": share_of(drawn, lambda pairs: compare_pairs(pairs)["verdict"] == "worse"),
        }


def measure_repeats(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Verdicts on the mean of five samples a prompt, whose difficulties are Beta(1.4, 0.6)."""
    repeats = 5
    for prompts, drop in itertools.product((50, 200, 1000), (0.0, LIMIT, 0.05)):
        ease = dice.beta(1.4, 0.6, (cases, prompts))
        old, new = dice.binomial(repeats, ease), dice.binomial(repeats, ease * (1 - drop / 0.7))
        differences = (new - old) / repeats
        mean, error = differences.mean(axis=1), differences.std(axis=1, ddof=1) / math.sqrt(prompts)
        padded = differences.sum(axis=1) / (prompts + 2)
        spread = ((differences**2).sum(axis=1) + 2) / (prompts + 2)
        half = stdtrit(prompts - 1, 0.975) * np.sqrt((spread - padded**2) / (prompts + 2))
        yield {
            "prompts": prompts,
            "drop": drop,
            "fail": float(((mean / error < -stdtrit(prompts - 1, 0.975)) & (padded + half < -LIMIT)).mean()),
            "pass": float((padded - half >= -LIMIT).mean()),
        }


def measure_part_of_verdicts(seed: int) -> dict[str, Rows]:
    """Measure the verdicts on accuracy."""
    check_against_sql()
    dice = np.random.default_rng(seed)
    found: dict[str, Rows] = {}
    for name, measure, cases in (
        ("false_passes", measure_false_passes, 20_000),
        ("verdicts", measure_verdicts, 20_000),
        ("coverage", measure_coverage, 20_000),
        ("power", measure_power, 20_000),
        ("repeats", measure_repeats, 4_000),
    ):
        found[name] = list(measure(dice, cases))
        print_rows(f"{name}: {measure.__doc__}", found[name])
    return found


BATCHES = 20
PERCENTILES = (0.5, 0.95, 0.99)


def draw_queue(dice: Dice, load: float, requests: int, cases: int) -> np.ndarray:
    """Draw cases × requests sojourn times of a stationary M/M/1 queue that serves one request a second (Lindley)."""
    waited = np.where(dice.random(cases) < load, dice.exponential(1 / (1 - load), cases), 0)
    found = np.empty((requests, cases))
    for one in found:
        one[:] = waited + dice.standard_exponential(cases)
        waited = np.maximum(0, one - dice.standard_exponential(cases) / load) if load else 0 * waited
    return np.ascontiguousarray(found.T)


def count_effective(latencies: np.ndarray, percentile: float) -> np.ndarray:
    """Compute effective requests as latency_percentile does: cases × requests in order of arrival."""
    n = latencies.shape[1]
    is_below = latencies <= np.quantile(latencies, percentile, axis=1, keepdims=True)
    shares = np.stack([part.mean(axis=1) for part in np.array_split(is_below, BATCHES, axis=1)], axis=1)
    mean = shares.mean(axis=1)
    deviations = shares - mean[:, None]
    squares = (deviations**2).sum(axis=1)
    with np.errstate(all="ignore"):
        r = (deviations[:, 1:] * deviations[:, :-1]).sum(axis=1) / squares + 1 / BATCHES + BATCHES**-0.5
        r = np.maximum(0, r)
        variance = squares / (BATCHES - 1) / BATCHES
        effective = mean * (1 - mean) / variance * (Z / stdtrit(BATCHES - 1, 0.975)) ** 2 * (1 - r) / (1 + r)
    return np.where(variance < 1e-12, n, np.floor(np.clip(effective, 0, n))).astype(int)


def find_ends(ranked: np.ndarray, m: np.ndarray, percentile: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both ends of the intervals by effective requests, and whether there is one."""
    n = ranked.shape[1]
    sure = np.maximum(m, 1)
    low, high = binom.ppf(0.025, sure, percentile).astype(int), binom.ppf(0.975, sure, percentile).astype(int) + 1
    is_given = (m > 0) & (low >= 1) & (high <= m)
    ranks = np.maximum(1, low * n // sure), np.minimum(n, -(-(high - 1) * n // sure) + 1)
    lows, highs = (np.take_along_axis(ranked, rank[:, None] - 1, axis=1)[:, 0] for rank in ranks)
    return lows, highs, is_given


def find_intervals(latencies: np.ndarray, percentile: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return low, high and whether there is an interval, as latency_percentile does."""
    has_enough = count_effective(latencies, 0.5) * min(percentile, 1 - percentile) >= 10 - 1e-9
    lows, highs, is_given = find_ends(np.sort(latencies, axis=1), count_effective(latencies, percentile), percentile)
    return lows, highs, is_given & has_enough


def measure_load(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Coverage of the intervals of latency percentiles, by load (0: independent requests) and requests."""
    for load, requests in itertools.product((0.0, 0.3, 0.5, 0.8, 0.9), (2_000, 10_000)):
        latencies = draw_queue(dice, load, requests, cases)
        for percentile in PERCENTILES:
            true = -math.log(1 - percentile) / (1 - load)
            low, high, is_given = find_intervals(latencies, percentile)
            holds = is_given & (low <= true) & (true <= high)
            yield {
                "load": f"{load:.0%}",
                "requests": requests,
                "percentile": f"p{percentile * 100:.0f}",
                "held": float(holds.sum() / is_given.sum()) if is_given.any() else None,
                "given": float(is_given.mean()),
                "wrong": float((is_given & ~holds).mean()),
            }


def measure_rates(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Coverage of the interval of throughput, as of rate_interval: by arrivals, ten a second, and requests."""
    for arrivals, requests in itertools.product(("Poisson", "bursts", "two rates"), (2_000, 10_000)):
        gaps = dice.standard_exponential((cases, requests)) / 10
        if arrivals == "bursts":
            gaps = dice.gamma(1 / 9, 9 / 10, (cases, requests))
        elif arrivals == "two rates":  # half as many or half as many more, for about 300 requests
            changes = np.cumsum(dice.random((cases, requests)) < 1 / 300, axis=1) + dice.integers(0, 2, (cases, 1))
            gaps = gaps * np.where(changes % 2, 0.5, 1.5)
        ended = np.cumsum(gaps, axis=1)
        numbers = np.minimum(19, (20 * ended / ended[:, -1:]).astype(int))
        counts = np.stack([(numbers == number).sum(axis=1) for number in range(20)], axis=1)
        around = 20 * counts / requests - 1
        r = (around[:, 1:] * around[:, :-1]).sum(axis=1) / (around**2).sum(axis=1) + 1 / 20 + 20**-0.5
        r = np.where(r < 1, np.maximum(0, r), np.nan)
        half = stdtrit(19, 0.975) * np.sqrt(around.var(axis=1, ddof=1) / 20 * (1 + r) / (1 - r))
        rate, is_given = requests / ended[:, -1], ~np.isnan(half)
        holds = abs(rate - 10) <= half * rate
        yield {
            "arrivals": arrivals,
            "requests": requests,
            "held": float(holds[is_given].mean()),
            "given": float(is_given.mean()),
        }


def check_load_against_sql(dice: Dice) -> None:
    """Raise unless latency_percentile has these intervals."""
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    for load, requests in ((0.0, 2_003), (0.5, 3_001), (0.8, 2_000)):
        (latencies,) = draw_queue(dice, load, requests, 1)
        run_id = str(requests)
        connection.execute(
            "insert into raw.runs (run_id, name, prompt_set, model, spec_hash, spec_json, assayline_version, "
            "host_name, attempt, state, started_at) values (?, '', '', '', '', '{}', '', '', 1, 'completed', now())",
            [run_id],
        )
        connection.execute(
            "insert into raw.requests (run_id, request_id, prompt_id, occurrence, repeat_index, sampling_json) "
            "select ?, range, 'p', 0, 0, '{}' from range(?)",
            [run_id, requests],
        )
        connection.execute(
            "insert into raw.completions (run_id, request_id, worker, engine_generation, window_requests, "
            "arrived_at_s, finished_at_s) select ?, i, 'w', 0, 1, i, i + s "
            "from (select unnest(range(?)) as i, unnest(?) as s)",
            [run_id, requests, latencies.tolist()],
        )
        for percentile in PERCENTILES:
            low, high, is_given = (column[0] for column in find_intervals(latencies[None], percentile))
            found = connection.execute(
                "select low_s, high_s from internal.latency_percentile "
                "where run_id = ? and metric = 'e2e_s' and percentile = ?",
                [run_id, percentile],
            ).fetchone()
            expected = (low, high) if is_given else (None, None)
            assert found and all(
                one is other if other is None else abs(one - other) < 1e-6
                for one, other in zip(found, expected, strict=True)
            ), f"load {load}, percentile {percentile}: {found} in SQL, {expected} here"


def measure_part_of_load(seed: int) -> dict[str, Rows]:
    """Measure the intervals of latency percentiles."""
    dice = np.random.default_rng(seed)
    check_load_against_sql(dice)
    found = list(measure_load(dice, 1_000))
    print_rows(f"load: {measure_load.__doc__}", found)
    rates = list(measure_rates(dice, 1_000))
    print_rows(f"rates: {measure_rates.__doc__}", rates)
    return {"load": found, "rates": rates}


def measure_ratio(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Coverage of the interval of the cost per right answer, by clusters, prompts of each, and samples of each."""
    for clusters, prompts, repeats, spread, longer in (
        (50, 1, 1, 0.3, 0.0),
        (200, 1, 1, 0.6, 0.7),
        (200, 1, 5, 0.6, 0.7),
        (1_000, 1, 1, 1.0, 1.1),
        (50, 5, 1, 0.6, 0.7),
        (200, 5, 1, 0.6, 0.7),
    ):
        # Hard passages: 80% of their prompts are hard, and 20% of those of the others.
        of_cluster = np.where(dice.random((cases, clusters, 1)) < 0.5, 0.8, 0.2) if prompts > 1 else 0.5
        is_hard = (dice.random((cases, clusters, prompts)) < of_cluster)[..., None]
        shape = (cases, clusters, prompts, repeats)
        cost = np.exp(longer * is_hard + dice.normal(0, spread, shape))
        right = dice.random(shape) < np.where(is_hard, 0.3, 0.9)
        true = np.log((1 + math.exp(longer)) / 2 * math.exp(spread**2 / 2) / 0.6)
        total, hits = cost.sum(axis=(1, 2, 3)), right.sum(axis=(1, 2, 3))
        difference = cost / total[:, None, None, None] - right / hits[:, None, None, None]
        residuals = right - (hits / right[0].size)[:, None, None, None]
        errors = {
            "fixed": (residuals.sum(axis=3).reshape(cases, -1), hits),
            "by_prompt": (difference.sum(axis=3).reshape(cases, -1), 1),
            "now": (difference.sum(axis=(2, 3)), 1),
        }
        found = {"clusters": clusters, "prompts": prompts, "repeats": repeats, "spread": f"{spread}, {longer}"}
        for name, (sums, scale) in errors.items():
            n = sums.shape[1]
            error = np.sqrt((sums**2).sum(axis=1) * n / (n - 1)) / scale
            found[name] = float((abs(np.log(total / hits) - true) <= stdtrit(n - 1, 0.975) * error).mean())
        yield found


def measure_part_of_ratio(seed: int) -> dict[str, Rows]:
    """Measure the interval of the cost per right answer."""
    found = list(measure_ratio(np.random.default_rng(seed), 2_000))
    print_rows(f"ratio: {measure_ratio.__doc__}", found)
    return {"ratio": found}


def measure_part_of_nights(seed: int) -> dict[str, Rows]:
    """Measure the gate and the level shifts on a schedule."""
    found: dict[str, Rows] = {}
    for number, (name, measure, cases) in enumerate(
        (
            ("speed", nights.measure_speed, 400),
            ("accuracy", nights.measure_accuracy, 2_000),
        )
    ):
        found[name] = list(measure(np.random.default_rng([seed, number]), cases))
        print_rows(f"{name}: {measure.__doc__}", found[name])
    return found


def measure_part_of_noise(seed: int) -> dict[str, Rows]:
    """Measure the noise floor."""
    rows = list(statistics_noise.measure_noise(np.random.default_rng([seed, 1]), 20_000))
    print_rows(f"noise: {statistics_noise.measure_noise.__doc__}", rows)
    return {"noise": rows}


def measure_part_of_clusters(seed: int) -> dict[str, Rows]:
    """Measure intervals and verdicts over clusters, and intervals of partial scores."""
    dice = np.random.default_rng(seed)
    found: dict[str, Rows] = {}
    for name, measure in (
        ("clusters", statistics_clusters.measure_clusters),
        ("partial", statistics_clusters.measure_partial),
    ):
        found[name] = list(measure(dice, 4_000))
        print_rows(f"{name}: {measure.__doc__}", found[name])
    return found


def measure_part_of_suite(seed: int) -> dict[str, Rows]:
    """Measure the decisions of suites."""
    check_against_sql()

    @cache
    def judge(limit: float, *counts: int) -> Check:
        return judge_scores(compare_pairs(Pairs(*counts)), GateSpec(max_accuracy_drop=limit))

    rows = list(measure_suites(np.random.default_rng(seed), judge, 5_000))
    print_rows(f"suites: {measure_suites.__doc__}", rows)
    return {"suites": rows}


PARTS: dict[str, Callable[[int], dict[str, Rows]]] = {
    "verdicts": measure_part_of_verdicts,
    "load": measure_part_of_load,
    "ratio": measure_part_of_ratio,
    "nights": measure_part_of_nights,
    "noise": measure_part_of_noise,
    "suite": measure_part_of_suite,
    "clusters": measure_part_of_clusters,
}
"""Parts by name: a function of the seed that prints its tables and returns their rows."""


def show(value: float | str) -> str:
    """Format a cell: shares as percentages, counts and names as they are."""
    match value:
        case float():
            return f"{value:>11.2%}"
        case str():
            return f"{value:>11}"
        case _:
            return f"{value:>11,}"


def print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a table: shares as percentages, counts as they are."""
    print(f"\n{title}\n{'  '.join(f'{name:>11}' for name in rows[0])}", flush=True)
    for row in rows:
        print("  ".join(f"{show_cell(value):>11}" for value in row.values()))


def show_cell(value: Any) -> str:
    """Format a share as a percentage, a count with commas, and None as a dash."""
    if isinstance(value, float):
        return f"{value:.2%}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to measure (default: {','.join(PARTS)})")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started_s = time.process_time()
    report: dict[str, Any] = {"benchmark": "statistics", "seed": options.seed}
    for part in options.parts.split(","):
        report[part] = PARTS[part](options.seed)
    report["cpu_seconds"] = round(time.process_time() - started_s)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
