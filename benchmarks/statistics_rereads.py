"""Verdicts of rereads on prompts that are drawn from those of real readings, and calls of the answers that part.

statistics_rereads.json has, by engine, each prompt's divergence from a reference, the reference's floor, and the calls
of the answers that part (`benchmarks.reread_faults`).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assayline.stats.rereads import LIMIT, judge_reading, read_answers

DRAWS = 400
PROMPTS = 30


def measure_rereads(generator: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Shares of verdicts of 30 prompts, drawn with replacement, and of the answers that part those called ties.

    The AUC is the probability that the call's measure is higher at a parting by this engine than by an equal one.
    """
    readings = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    equal = [one for name, reading in readings.items() if name.startswith("the same") for one in reading["partings"]]
    for name, reading in readings.items():
        kl, floor = np.array(reading["kl"]), np.array(reading["floor"])
        verdicts = []
        for drawn in generator.integers(0, len(kl), (DRAWS, PROMPTS)):
            rows = [{"kl": kl[one], "floor_kl": floor[one], "cluster": n} for n, one in enumerate(drawn)]
            found = read_answers(rows)
            assert found is not None
            verdicts.append(judge_reading(found)[0])
        partings = reading["partings"]
        auc = np.greater.outer(grade(partings), grade(equal)).mean() if not name.startswith("the same") else None
        yield {
            "engine that reads": name,
            "kl (1e-3 nats)": f"{1e3 * kl.mean():.2f}",
            **{verdict: verdicts.count(verdict) / DRAWS for verdict in ("fail", "pass")},
            "answers that part": len(partings),
            "ties": sum(one["is_tie"] for one in partings) / len(partings),
            "AUC": None if auc is None else f"{auc:.3f}",
        }


def grade(partings: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how far each parting is from a tie: the noise, or infinity if the tokens are not about as likely."""
    return [one["noise"] if one["is_tie"] or one["noise"] > LIMIT else math.inf for one in partings]
