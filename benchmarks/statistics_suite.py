"""Decisions of simulated suites: how often models get GO, NO-GO and INCONCLUSIVE."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assayline.benchmark.decision import JudgedCell, decide
from assayline.benchmark.suite import Cell
from assayline.comparison.gate import Check, GateReport
from assayline.spec.file import parse_spec
from assayline.spec.suite import Tier

PROMPTS, CHURN = 1_000, 0.04
Judge = Callable[[float, int, int, int], Check]
"""Judges as the gate does, by the limit, the prompts, and those that became worse and better."""
CASES: tuple[tuple[str, float, int, int, dict[int, float]], ...] = (
    ("equal", 0.0, 1, 0, {}),
    ("equal", 0.0, 5, 0, {}),
    ("equal", 0.0, 20, 0, {}),
    ("equal", 0.0, 10, 5, {}),
    ("equal", 0.02, 1, 0, {}),
    ("equal", 0.02, 20, 0, {}),
    ("equal", 0.02, 10, 5, {}),
    ("equal", 0.03, 10, 5, {}),
    ("one at its limit", 0.02, 10, 5, {0: 0.02}),
    ("one loses 3 points", 0.02, 10, 5, {0: 0.03}),
    ("one loses 4 points", 0.02, 10, 5, {0: 0.04}),
    ("one loses 2 points", 0.0, 20, 0, {0: 0.02}),
    ("supporting at the limit", 0.02, 10, 5, dict.fromkeys(range(10, 15), 0.02)),
    ("supporting lose 3 points", 0.02, 10, 5, dict.fromkeys(range(10, 15), 0.03)),
)
"""Name, limit, critical and supporting evaluations, and the true drops by evaluation."""


def measure_suites(dice: np.random.Generator, judge: Judge, cases: int) -> Iterator[dict[str, Any]]:
    """Shares of decisions; `single` is the share in which a critical evaluation fails a gate of its own."""
    for name, limit, critical, supporting, drops in CASES:
        tiers: list[Tier] = [*["critical"] * critical, *["supporting"] * supporting]
        cells = [_make_cell(str(number), tier, limit) for number, tier in enumerate(tiers)]
        chances = [
            [(CHURN + drop) / 2, (CHURN - drop) / 2, 1 - CHURN]
            for drop in (drops.get(i, 0.0) for i in range(len(tiers)))
        ]
        drawn = np.stack([dice.multinomial(PROMPTS, chance, cases)[:, :2] for chance in chances], axis=1)
        found: Counter[str] = Counter()
        for case in drawn.tolist():
            reports = [GateReport("new", "old", [judge(limit, PROMPTS, worse, better)]) for worse, better in case]
            judged = [JudgedCell(cell, "new", report) for cell, report in zip(cells, reports, strict=True)]
            found[decide(judged).word] += 1
            found["single"] += any(report.failed for report in reports[:critical])
        shares = {word: found[word] / cases for word in ("GO", "NO-GO", "INCONCLUSIVE", "single")}
        yield {"model": name, "limit": limit, "critical": critical, "supporting": supporting, **shares}


def _make_cell(name: str, tier: Tier, limit: float) -> Cell:
    spec = parse_spec(
        {
            "model": "model",
            "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "1"}]}},
            "gate": {"max_accuracy_drop": limit, "max_slowdown": {}},
        }
    )
    return Cell(name, "model", tier, 1.0, 1, "stable", spec)
