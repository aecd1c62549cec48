"""Error rates, coverage and power of assayline's statistics on simulated data, in parts.

    python -m benchmarks.statistics [--parts accuracy,clusters,speed,nights,history,levels,limits,load,rereads,bisect]

Only data are simulated: verdicts and intervals are those of `assayline.stats`, `assayline.comparison` and the SQL. Each
part writes its tables to docs/concepts/statistics.md; the last line printed is all rows as JSON. The part
history takes about eight minutes on one core, bisect about ten, and all others together about five.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import (
    statistics_accuracy,
    statistics_bisect,
    statistics_clusters,
    statistics_history,
    statistics_levels,
    statistics_limits,
    statistics_load,
    statistics_nights,
    statistics_rereads,
    statistics_speed,
)

Row = dict[str, Any]
PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "statistics.md"
PARTS: dict[str, dict[str, Callable[[np.random.Generator], Iterator[Row]]]] = {
    "accuracy": {
        "verdicts": statistics_accuracy.measure_verdicts,
        "reach": statistics_accuracy.measure_reach,
        "suites": statistics_accuracy.measure_suites,
        "boards": statistics_accuracy.measure_boards,
        "frontiers": statistics_accuracy.measure_frontiers,
        "choices": statistics_accuracy.measure_choices,
    },
    "clusters": {"clusters": statistics_clusters.measure_clusters},
    "speed": {
        "sessions": statistics_speed.measure_sessions,
        "noise": statistics_speed.measure_noise,
        "repeats": statistics_speed.measure_repeats,
    },
    "nights": {"nights": statistics_nights.measure_speed, "accuracy nights": statistics_nights.measure_accuracy},
    "history": {"own history": statistics_history.measure_history},
    "levels": {"levels": statistics_levels.measure_stable, "shifts": statistics_levels.measure_shifted},
    "limits": {"limits": statistics_limits.measure_limits, "published limits": statistics_limits.measure_published},
    "load": {
        "latency": statistics_load.measure_latency,
        "rates": statistics_load.measure_rates,
        "closed loops": statistics_load.measure_closed_loops,
    },
    "rereads": {"rereads": statistics_rereads.measure_rereads},
    "bisect": {"bisections": statistics_bisect.measure_histories, "fields": statistics_bisect.measure_fields},
}
"""Tables of each part, by the name of their place in the page: `<!-- NAME -->` in the line before."""


def show_cell(value: Any) -> str:
    """Format a share as a percentage, a count with commas, and None as a dash."""
    if isinstance(value, float):
        return f"{value:.1%}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def tabulate(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown, with columns of numbers to the right."""
    names = list(rows[0])
    is_text = [isinstance(value, str) and not value[:1].isdigit() for value in rows[0].values()]
    lines = [names, ["---" if text else "---:" for text in is_text]]
    lines += [[show_cell(value) for value in row.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to measure (default: {','.join(PARTS)})")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started_s = time.process_time()
    report: dict[str, Any] = {"benchmark": "statistics", "seed": options.seed}
    for part in options.parts.split(","):
        for number, (name, measure) in enumerate(PARTS[part].items()):
            report[name] = list(measure(np.random.default_rng([options.seed, number])))
            table = tabulate(report[name])
            print(f"\n{name}: {measure.__doc__}\n\n{table}", flush=True)
            page, places = re.subn(rf"(?<=<!-- {name} -->\n\n)(\|.*\n)+", lambda _: table, PAGE.read_text("utf-8"))  # noqa: B023
            assert places == 1, f"{PAGE} has no table {name}"
            PAGE.write_text(page, "utf-8")
    report["cpu_seconds"] = round(time.process_time() - started_s)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
