"""What a benchmark holds the pipeline against: plain vLLM in a process of its own, asked in lines of JSON.

The process is a module of `benchmarks/`: its first line in is what to open, each other one what to measure, and it
answers every line with one.
"""

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Yardstick:
    """One such process, with its engine open from the start."""

    def __init__(self, module: str, order: dict[str, Any], env: dict[str, str], log: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            env=env,
            text=True,
        )
        self.ask(order)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, question: Any) -> Any:
        """The answer to one line."""
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait(60)


def draw_output_tokens(dice: random.Random) -> int:
    """A length log-normal around e^4, from 8 to 256 tokens."""
    return min(max(int(dice.lognormvariate(4.0, 0.7)), 8), 256)


def describe_ratios(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """Median and range of what the pairs showed, for the line of JSON."""
    return {
        f"{name}_ratio_median": round(statistics.median(ratios), 4),
        f"{name}_ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
    }
