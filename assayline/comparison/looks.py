"""Looks: when a run that stops once its accuracy is decided is judged, and how strictly.

At ten equally spaced shares of its prompts, in their order, the run is compared with its baseline. Of equal runs, the
tests of all looks together call 5% different: at look k of 10, z has to exceed 2.199 × (10 / k)^0.25, which is the
boundary of Wang and Tsiatis (1987, "Approximately optimal one-parameter boundaries for group sequential trials") with
their parameter 0.25, between the boundaries of Pocock and of O'Brien and Fleming. Intervals at that z hold at all looks
together, too (Jennison and Turnbull 1989, "Interim analyses: the repeated confidence interval approach").
"""

import math
from typing import Any

LOOKS = 10
BOUND = 2.19872
"""z of the last look, for which the looks together have a level of 5%, by numerical integration."""
Z = 1.959963984540054


def list_looks(prompts: int) -> list[int]:
    """Return after how many prompts each look takes place; the last one is after all."""
    return [-(-prompts * look // LOOKS) for look in range(1, LOOKS + 1)]


def bound_of(look: int) -> float:
    """Return the z of a look, 1 to `LOOKS`."""
    return BOUND * math.sqrt(math.sqrt(LOOKS / look))


def alpha_of(look: int) -> float:
    """Return the two-sided level of a look's test."""
    return math.erfc(bound_of(look) / math.sqrt(2))


def widen(row: dict[str, Any], look: int) -> dict[str, Any]:
    """Return a row of compare_runs with interval, verdict and detectable drop at the level of a look."""
    if row["low"] is None:
        return row
    degrees = math.inf if row["mcnemar_p"] is not None else row["clusters"] - 1
    wider = _to_student(bound_of(look), degrees) / _to_student(Z, degrees)
    center, half = (row["high"] + row["low"]) / 2, wider * (row["high"] - row["low"]) / 2
    is_shown = row["p_value"] < alpha_of(look)
    return {
        **row,
        "low": max(-1.0, center - half),
        "high": min(1.0, center + half),
        "detectable_drop": row["detectable_drop"] * wider,
        "verdict": row["verdict"] if is_shown or row["verdict"] not in ("worse", "better") else "unclear",
    }


def _to_student(z: float, degrees: float) -> float:
    """Return the quantile of Student's t at the level of a z, by Wallace's (1959) approximation."""
    if degrees == math.inf:
        return z
    scaled = z * (8 * degrees + 3) / (8 * degrees + 1)
    return math.sqrt(degrees * math.expm1(scaled**2 / degrees))
