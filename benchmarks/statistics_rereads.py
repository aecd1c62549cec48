"""Verdicts of rereads on prompts that are drawn from those of real readings.

statistics_rereads.json has, by engine, each prompt's divergence from a reference and the reference's floor: 60 answers
of SmolLM2-135M-Instruct in bfloat16 to short questions, read on two CPU cores.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from assayline.stats.rereads import judge_reading, read_answers

DRAWS = 400


def measure_rereads(generator: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Shares of verdicts of 10 and 30 prompts, drawn with replacement."""
    readings = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    for name, reading in readings.items():
        kl, floor = np.array(reading["kl"]), np.array(reading["floor"])
        means = {"kl (1e-3 nats)": f"{1e3 * kl.mean():.2f}", "floor (1e-3 nats)": f"{1e3 * floor.mean():.2f}"}
        for prompts in (10, 30):
            verdicts = []
            for drawn in generator.integers(0, len(kl), (DRAWS, prompts)):
                rows = [{"kl": kl[one], "floor_kl": floor[one], "cluster": n} for n, one in enumerate(drawn)]
                found = read_answers(rows)
                assert found is not None
                verdicts.append(judge_reading(found)[0])
            shares = {verdict: verdicts.count(verdict) / DRAWS for verdict in ("fail", "pass")}
            yield {"engine that reads": name, "prompts": prompts, **means, **shares}
