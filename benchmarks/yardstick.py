"""Reference for benchmarks: plain vLLM in a separate process that reads and writes lines of JSON.

The process is a module of `benchmarks/`. The first line is the engine to open, each other line requests to measure;
every line is answered by one.
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
    """A reference process with an open engine."""

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
        """Send a line and return the answer."""
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(60)


def draw_output_tokens(dice: random.Random) -> int:
    """Draw a log-normal length (median e^4), 8 to 256 tokens."""
    return min(max(int(dice.lognormvariate(4.0, 0.7)), 8), 256)


def describe_ratios(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """Return median and range over the pairs, for the line of JSON."""
    return {
        f"{name}_ratio_median": round(statistics.median(ratios), 4),
        f"{name}_ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
    }
