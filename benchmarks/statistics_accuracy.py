"""Part `accuracy` of `benchmarks.statistics`: verdicts of the gate, suites and leaderboards on mean scores.

In a pair, answers change to either side with a probability of `churn` beyond the true drop. Samples are of prompts
whose difficulties are Beta(1.4, 0.6).
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from assayline.benchmark.campaign import Cell
from assayline.benchmark.decision import JudgedCell, decide
from assayline.benchmark.frontier import judge_family
from assayline.comparison.gate import Check, GateReport
from assayline.spec.criteria import GateSpec
from assayline.spec.file import parse_spec
from assayline.spec.identity import canonical_json
from assayline.spec.suite import Tier
from assayline.stats import to_rows
from assayline.stats.families import adjust_family
from assayline.stats.pairs import average_scores, bound_ratio, describe_pairs, find_reach, measure_pairs
from assayline.stats.worse import LEVEL, NIGHTS, Verdict, find_level

Dice = np.random.Generator
Row = dict[str, Any]
EASE = (1.4, 0.6)
LIMIT = GateSpec().max_accuracy_drop
FRONTIERS = 2000
SIDES = ("candidate", "baseline")


def compare(differences: np.ndarray) -> list[Row]:
    """Compare pairs × prompts of differences by the product's code; return rows of `measure_pairs`."""
    return compare_sums(
        differences.shape[1],
        differences.sum(axis=1),
        (differences**2).sum(axis=1),
        (differences > 0).sum(axis=1),
        (differences < 0).sum(axis=1),
        bool(np.isin(differences, (-1, 0, 1)).all()),
        np.abs(differences).max(axis=1),
    )


def compare_sums(
    prompts: int,
    total: np.ndarray,
    squares: np.ndarray,
    better: np.ndarray,
    worse: np.ndarray,
    is_binary: bool,
    largest: np.ndarray | None = None,
) -> list[Row]:
    """Compare pairs by their sums over prompts, one of each."""
    pairs = len(total)
    columns = {"first_total": total, "squares": squares, "better": better, "worse": worse}
    columns["largest"] = (squares > 0).astype(float) if largest is None else largest
    same = {"is_single": True, "is_binary": is_binary, "prompts": prompts, "second_total": 0.0}
    sums = columns | {name: np.full(pairs, value) for name, value in same.items()}
    return [row | {"scorer": "s"} for row in to_rows(measure_pairs(np.arange(pairs), sums, pairs))]


@cache
def judge_counts(limit: float, prompts: int, worse: int, better: int) -> Check:
    """Judge scores of 0 and 1 as the gate does."""
    return judge_row(count_row(prompts, worse, better), limit)


@cache
def count_row(prompts: int, worse: int, better: int) -> Row:
    """Return a row for scores of 0 and 1."""
    ends = [np.array([each], float) for each in (better - worse, better + worse, better, worse)]
    (row,) = compare_sums(prompts, *ends, is_binary=True)
    return row


def judge_row(row: Row, limit: float) -> Check:
    """Judge a row as the gate does, without its words."""
    found = describe_pairs(row, limit)
    values = (found.value, found.baseline_value, limit, "share", found.p_worse)
    return Check("accuracy", found.judge(), "", *values, compared=found)


def measure_verdicts(dice: Dice) -> Iterator[Row]:
    """Verdicts of the gate with a limit of one point, over 10,000 comparisons, 1,000 of samples."""
    for prompts, churn, drop in (
        (50, 0.05, 0.0), (1000, 0.05, 0.0), (1000, 0.01, 0.0), (200, 0.05, LIMIT),
        (1000, 0.01, LIMIT), (200, 0.05, 0.05), (1000, 0.05, 0.05), (200, 0.05, 0.1),
    ):  # fmt: skip
        drawn = dice.multinomial(prompts, [churn + drop, churn, 1 - 2 * churn - drop], 10_000)[:, :2]
        checks = [judge_counts(LIMIT, prompts, worse, better) for worse, better in drawn.tolist()]
        yield _describe(f"{drop:.0%}", prompts, f"{churn:.0%}", checks, -drop)
    for prompts, drop in ((200, 0.0), (1000, LIMIT), (200, 0.05)):
        ease = dice.beta(*EASE, (1000, prompts))
        differences = (dice.binomial(5, ease * (1 - drop / 0.7)) - dice.binomial(5, ease)) / 5
        checks = [judge_row(row, LIMIT) for row in compare(differences)]
        yield _describe(f"{drop:.0%}", prompts, "five samples", checks, -drop)


def _describe(drop: str, prompts: int, churn: str, checks: list[Check], true: float) -> Row:
    found = Counter(check.verdict for check in checks)
    ends = [(one.compared.low, one.compared.high) for one in checks if one.compared]
    held = [low <= true <= high for low, high in ends if low is not None and high is not None]
    shares = {verdict: found[verdict] / len(checks) for verdict in ("fail", "pass")}
    return {"true drop": drop, "prompts": prompts, "churn": churn, **shares, "interval holds": float(np.mean(held))}


SUITES: tuple[tuple[str, float, int, int, dict[int, float]], ...] = (
    ("equal", 0.0, 20, 0, {}),
    ("equal", 0.02, 20, 0, {}),
    ("equal", 0.03, 10, 5, {}),
    ("all at their limits", 0.02, 20, 0, dict.fromkeys(range(20), 0.02)),
    ("one loses 4 points", 0.02, 10, 5, {0: 0.04}),
    ("supporting at the limit", 0.02, 10, 5, dict.fromkeys(range(10, 15), 0.02)),
    ("supporting lose 3 points", 0.02, 10, 5, dict.fromkeys(range(10, 15), 0.03)),
)
"""Name, limit, critical and supporting evaluations, and the true drops by evaluation."""
PROMPTS, CHURN, DECISIONS = 1_000, 0.04, 2_000


def measure_suites(dice: Dice) -> Iterator[Row]:
    """Decisions of 2,000 suites a row: evaluations of 1,000 prompts with a churn of 4%, equal weights."""
    for name, limit, critical, supporting, drops in SUITES:
        tiers: list[Tier] = [*["critical"] * critical, *["supporting"] * supporting]
        cells = [_make_cell(str(number), tier, limit) for number, tier in enumerate(tiers)]
        chances = [
            [(CHURN + drop) / 2, (CHURN - drop) / 2, 1 - CHURN]
            for drop in (drops.get(i, 0.0) for i in range(len(tiers)))
        ]
        drawn = np.stack([dice.multinomial(PROMPTS, chance, DECISIONS)[:, :2] for chance in chances], axis=1)
        found: Counter[str] = Counter()
        for case in drawn.tolist():
            reports = [GateReport("new", "old", [judge_counts(limit, PROMPTS, *counts)]) for counts in case]
            judged = [JudgedCell(cell, "new", report) for cell, report in zip(cells, reports, strict=True)]
            found[decide(judged).word] += 1
            found["a gate alone fails"] += any(report.failed for report in reports[:critical])
        shares = {word: found[word] / DECISIONS for word in ("GO", "NO-GO", "a gate alone fails")}
        sizes = {"limit": f"{100 * limit:g} points", "critical": critical, "supporting": supporting}
        yield {"model": name, **sizes, **shares}


def _make_cell(name: str, tier: Tier, limit: float) -> Cell:
    spec = parse_spec(
        {
            "model": "model",
            "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "1"}]}},
            "gate": {"max_accuracy_drop": limit, "max_slowdown": {}},
        }
    )
    names = {"task": name, "variant": "model", "label": name, "config_id": ""}
    return Cell(**names, tier=tier, baseline="stable", spec_json=canonical_json(spec))


def measure_boards(dice: Dice) -> Iterator[Row]:
    """Leaderboards of 400 pages a row: equal models, or a first one that leads."""
    for models, prompts, scores, lead in (
        (8, 200, "0 or 1", 0.0), (8, 60, "five samples", 0.0), (8, 200, "partial", 0.0),
        (8, 200, "nearly always 1", 0.0), (8, 200, "0 or 1", 0.15), (8, 1000, "0 or 1", 0.05),
    ):  # fmt: skip
        pairs, wrong, won = list(combinations(range(models), 2)), 0, 0
        for _ in range(400):
            ease = dice.beta(*((40, 1) if scores == "nearly always 1" else EASE), prompts)
            chance = np.tile(ease, (models, 1))
            chance[0] += lead * (1 - chance[0]) / 0.3
            values = (
                dice.binomial(5, chance) / 5 if scores == "five samples" else dice.binomial(1, chance).astype(float)
            )
            if scores == "partial":
                values *= np.where(dice.random(values.shape) < 0.5, 1, dice.beta(2, 1, values.shape))
            rows = compare(np.stack([values[one] - values[other] for one, other in pairs]))
            verdicts = [one.name_change() for one in adjust_family(list(map(describe_pairs, rows)))]
            of_first = [verdict for verdict, (one, _) in zip(verdicts, pairs, strict=True) if lead and one == 0]
            wrong += any(verdict != "unclear" for verdict in verdicts[len(of_first) :])
            won += bool(of_first) and all(verdict == "better" for verdict in of_first)
        shares = {"false difference": wrong / 400, "called the winner": won / 400 if lead else None}
        yield {"models": models, "prompts": prompts, "scores": scores, "one leads by": f"{lead:.0%}", **shares}


def measure_frontiers(dice: Dice) -> Iterator[Row]:
    """Benchmarks of three configurations against a baseline, with a limit of one point."""
    for prompts, samples, true in ((200, 1, 1.0), (1000, 1, 1.0), (200, 5, 1.0), (200, 1, 0.9), (1000, 5, 0.9)):
        found: list[tuple[Row, Verdict]] = []
        for _ in range(FRONTIERS):
            ease = dice.beta(*EASE, prompts)
            new, old = (dice.binomial(samples, chance, (3, prompts)) / samples for chance in (ease * true, ease))
            rows = [row | _add_squares(one, old[0]) for one, row in zip(new, compare(new - old[0]), strict=True)]
            found += zip(rows, judge_rows(rows, LIMIT), strict=True)
        ends = [bound_ratio(row) for row, _ in found]
        held = [low <= true <= high for low, high in ends if low is not None and high is not None]
        names = {
            "true recovery": f"{true:.0%}",
            "prompts": prompts,
            "scores": "0 or 1" if samples == 1 else "five samples",
        }
        verdicts = np.array([verdict for _, verdict in found]).reshape(FRONTIERS, 3)
        shares = {"one is called worse": float((verdicts == "fail").any(axis=1).mean())}
        shares["called kept"] = float((verdicts == "pass").mean())
        yield {**names, **shares, "interval holds": float(np.mean(held))}


def judge_rows(rows: list[Row], limit: float) -> list[Verdict]:
    """Judge configurations of one task as one family."""
    means = [average_scores([describe_pairs(row, limit)], [1.0], "mean_accuracy") for row in rows]
    return [mean.judge() for mean in judge_family(means)]


def measure_choices(dice: Dice) -> Iterator[Row]:
    """Share of 1,000 benchmarks in which a configuration that loses the limit, or 1.3 times as much, is kept."""
    limit, prompts = 0.03, 1_000
    for configurations in (1, 3, 10, 20):
        row: Row = {"configurations": configurations}
        for name, drop in (("one at the limit is kept", limit), ("one beyond it is kept", 1.3 * limit)):
            drawn = dice.multinomial(prompts, [0.05 + drop, 0.05, 0.9 - drop], (1_000, configurations))[:, :, :2]
            hits = 0
            for case in drawn.tolist():
                hits += "pass" in judge_rows([count_row(prompts, *counts) for counts in case], limit)
            row[name] = hits / 1_000
        yield row


def measure_reach(dice: Dice) -> Iterator[Row]:
    """Share of gates that fail at the drop that the gate names for 80%, over 40 equal pairs of runs a cell."""
    for prompts, churn in itertools.product((50, 200, 1_000), (0.0, 0.01, 0.05, 0.15)):
        row: Row = {"prompts": prompts, "churn": f"{churn:.0%}"}
        for name, level in (("found", LEVEL), ("found by a night", find_level(NIGHTS))):
            found = []
            for worse, better in dice.multinomial(prompts, [churn, churn, 1 - 2 * churn], 40)[:, :2].tolist():
                reach = find_reach(count_row(prompts, worse, better), LIMIT, level) or 2.0
                if reach <= 1 - 2 * churn:
                    drawn = dice.multinomial(prompts, [churn + reach, churn, 1 - 2 * churn - reach], 100)[:, :2]
                    rows = [count_row(prompts, *counts) for counts in drawn.tolist()]
                    found += [describe_pairs(one, LIMIT).judge(level) == "fail" for one in rows]
            row[name] = float(np.mean(found)) if found else None
        yield row


def _add_squares(new: np.ndarray, old: np.ndarray) -> Row:
    moments = {"mean": (new.mean(), old.mean()), "square": ((new**2).mean(), (old**2).mean())}
    return {f"{side}_{name}": float(pair[place]) for name, pair in moments.items() for place, side in enumerate(SIDES)}
