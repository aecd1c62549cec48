"""noise: judge a limit of a test by the values of past builds.

    assayline noise --values FILE|- --limit X [--column NAME] [--prompts N]
    assayline noise --history NAME --limit X [--metric METRIC]

It needs neither a spec nor an engine.
"""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assayline.flows.cli.options import make_parser
from assayline.words import count, show_share, show_value

if TYPE_CHECKING:
    from assayline.comparison.levels import Shift
    from assayline.stats.clusters import Floats
    from assayline.stats.limits import Estimate

EPILOG = """Values are those of one test, in the order of its builds: a number per line, a column of a CSV or JSON, a
table with date, name and value as for `assayline import`, or runs of a history, imported or own. If their level
shifted, those after the last shift count (docs/guides/ci.md).

  assayline noise --values nights.csv --column score --limit 0.85 --prompts 200
  assayline noise --history gsm8k --metric output_tokens_per_s --limit 5100 --max-false-alarms 0.01

Exit codes: 0 judged, 1 the limit is shown to fail unchanged builds more often than --max-false-alarms,
 2 an invalid value or option, or fewer than five values, 6 the database cannot be read."""
PARSER = make_parser("noise", EPILOG)
PARSER.add_argument("--values", metavar="FILE", help="CSV, JSON or a number per line; - reads the standard input")
PARSER.add_argument("--column", metavar="NAME", help="column of the values (default: value, or the only one)")
PARSER.add_argument("--history", metavar="NAME", help="runs of a history: name, run id or config_id")
PARSER.add_argument(
    "--metric", metavar="METRIC", help="metric of --history (default: accuracy), or name in a table of several"
)
PARSER.add_argument(
    "--limit", type=float, metavar="X", help="value beyond which a build fails (default: a limit found)"
)
PARSER.add_argument("--lower-is-better", action="store_true", help="builds fail above the limit, as for latencies")
PARSER.add_argument("--prompts", type=int, metavar="N", help="prompts of each score, if it is a share of right answers")
PARSER.add_argument(
    "--max-false-alarms", type=float, metavar="SHARE", help="wanted share of unchanged builds that fail (default: 0.05)"
)
DEFAULT_RATE = 0.05
TELLABLE_VALUES = 16
"""Number of values among which a level shift of six standard deviations is found nine times in ten."""


def run(arguments: list[str]) -> int:
    """Print the answers. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if (known.values is None) == (known.history is None):
        PARSER.error("pass one of --values FILE and --history NAME")
    rate = DEFAULT_RATE if known.max_false_alarms is None else known.max_false_alarms
    if not 0 < rate < 0.5:
        PARSER.error(f"--max-false-alarms {rate:g}: expected a share above 0 and below 0.5, such as 0.05")

    from assayline.errors import SpecError
    from assayline.stats import limits

    is_lower_better = known.lower_is_better
    if known.values is not None:
        found = _read_values(known.values, known.column, known.metric)
    else:
        found, is_lower_better = _read_history(known.history, known.metric or "accuracy")
    sign = -1.0 if is_lower_better else 1.0
    level, shift = take_level(found)
    values = sign * level
    if len(values) < limits.FEWEST_VALUES:
        raise SpecError(f"There are {len(values)} values of this level, and five are needed. hint: pass more builds.")
    if shift:
        print(
            f"The last {len(values)} of {len(found)} values are another level: {show_value(shift.before)} → "
            f"{show_value(shift.after)}. Only they count."
        )
    elif len(values) < TELLABLE_VALUES:
        print(
            f"Among {len(values)} values, a large shift of their level may not be found: check that it did not shift."
        )
    if correlation := limits.find_correlation(values):
        print(f"Neighbors depend on each other (correlation {correlation:.2g}), which widens the intervals.")
    best = limits.find_limit(values, rate)
    limit = best if known.limit is None else sign * known.limit
    alarms = limits.find_false_alarms(values, limit)
    print(f"At {show_value(sign * limit)}, an unchanged build fails in {_show(alarms)}, by these {len(values)} values.")
    if known.limit is not None and (ties := int((values == limit).sum())):
        strict = limits.find_false_alarms(values, math.nextafter(limit, math.inf))
        print(f"{count(ties, 'value')} equal to it passed; if such builds fail too: {_show(strict)}.")
    if known.limit is not None:
        other = sign * _round(sign * best, values.std(), sign)
        by_t = rate * (len(values) + 1) < 1
        found_rate = f"about {show_share(rate)}, by t" if by_t else _show(limits.find_false_alarms(values, other))
        print(f"A limit of {show_value(sign * other)} fails in {found_rate}.")
    _print_needs(values, sign, limit, rate, known.prompts)
    return int(known.max_false_alarms is not None and alarms.low > rate)


def take_level(values: list[float]) -> "tuple[Floats, Shift | None]":
    """Return the values after the last level shift, and the shift, if any."""
    import numpy as np

    from assayline.comparison.levels import find_shifts, is_tellable

    *_, shift = None, *(find_shifts(values) if is_tellable([values]) else [])
    return np.array(values[shift.index if shift else 0 :], dtype=np.float64), shift


def _print_needs(values: Any, sign: float, limit: float, rate: float, prompts: int | None) -> None:
    """Print the smallest drop that the limit finds, and the repeats or prompts with which it rarely fails by chance."""
    from assayline.stats import limits

    worse = "drop" if sign > 0 else "rise"
    drop = limits.find_smallest_drop(values, limit)
    if drop is None:
        print(f"The smallest {worse} that it finds is unknown: more values are needed.")
    else:
        ends = f"{show_value(float(f'{drop.low:.2g}'))} to {show_value(float(f'{drop.high:.2g}'))}"
        print(
            f"A {worse} of {show_value(float(f'{drop.value:.2g}'))} (95%: {ends}) is found in "
            f"{show_share(limits.POWER)} of runs, one of half its size in "
            f"{show_share(limits.find_false_alarms(values, limit + drop.value / 2).value)}."
        )
    repeats = limits.count_repeats(values, limit, rate)
    if repeats is None:
        print("The limit is beyond the level itself: no number of repeats or prompts makes it pass.")
    elif repeats.value > 1:
        needed = limits.count_prompts(values, limit, rate, prompts) if prompts else None
        or_more = f", or {needed:,} prompts instead of {prompts:,}" if needed else ""
        print(
            f"To fail in at most {show_share(rate)}, it needs the mean of {count(repeats.value, 'run')} (95%: "
            f"{repeats.low:.0f} to {repeats.high:.0f}){or_more}."
        )
        if prompts and not needed:
            print("More prompts do not suffice: most of the noise is between runs.")


def _show(estimate: "Estimate") -> str:
    return f"{show_share(estimate.value)} (95%: {show_share(estimate.low)} to {show_share(estimate.high)})"


def _round(limit: float, spread: float, sign: float) -> float:
    """Round a limit to a tenth of the spread, towards fewer false alarms."""
    if not spread:
        return limit
    step = 10.0 ** math.floor(math.log10(spread))
    return float(f"{sign * math.floor(sign * limit / step + 1e-9) * step:.6g}")


def _read_values(name: str, column: str | None, metric: str | None) -> list[float]:
    """Read the numbers of a file or the standard input. Raises SpecError."""
    from assayline.errors import SpecError
    from assayline.imports.totals import parse_table

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise SpecError(f"{name} cannot be read: {error}. hint: pass a text file.") from None
    try:
        lines = text.split()
        rows: list[Any] = lines if all(map(_is_number, lines)) else parse_table(text)
        if rows and isinstance(rows[0], dict):
            rows = _choose_rows(rows, metric)
            column = column or _choose_column(rows)
            rows = [row[column] for row in rows if row[column] not in (None, "")]
        values = [float(row) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        what = f"no column {error}" if isinstance(error, KeyError) else str(error)
        raise SpecError(f"{name} has no list of numbers: {what}. hint: name the column with --column.") from None
    if not all(map(math.isfinite, values)):
        raise SpecError(f"{name} has a value that is not finite. hint: leave out builds without a value.")
    return values


def _choose_rows(rows: list[dict[str, Any]], metric: str | None) -> list[dict[str, Any]]:
    """Return the rows of one name of a table with `name` and `value`. Raises SpecError for several or unknown ones."""
    from assayline.errors import SpecError

    names = list(dict.fromkeys(str(row.get("name")) for row in rows)) if {"name", "value"} <= rows[0].keys() else []
    if len(names) < 2 and metric in (None, *names):
        return rows
    if metric not in names:
        known = ", ".join(names[:5]) or "missing"
        raise SpecError(f"The names of values are {known}, and one is judged. hint: pass it as --metric NAME.")
    return [row for row in rows if row["name"] == metric]


def _choose_column(rows: list[dict[str, Any]]) -> str:
    numbers = [name for name in rows[0] if all(_is_number(row[name]) for row in rows)]
    if "value" in numbers or len(numbers) == 1:
        return "value" if "value" in numbers else numbers[0]
    raise ValueError(f"columns with numbers are {', '.join(numbers) or 'missing'}")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _read_history(name: str, metric: str) -> tuple[list[float], bool]:
    """Read a metric of the runs of a history, oldest first, and whether lower is better. Raises SpecError."""
    from assayline.errors import SpecError
    from assayline.flows.cli.words import complete_run_id
    from assayline.report.make import open_database
    from assayline.settings import load_settings
    from assayline.store.database import read_rows
    from assayline.store.metrics import ensure_metrics

    def read(connection: Any) -> list[dict[str, Any]]:
        ensure_metrics(connection)
        return read_rows(connection, _HISTORY, complete_run_id(name, settings), metric)

    settings = load_settings()
    rows = open_database(settings).query(read)
    if not rows:
        raise SpecError(f"No run of {name!r} has {metric}. hint: `assayline list runs` lists names.")
    return [row["value"] for row in rows], rows[0]["higher_is_better"] is False


_HISTORY = """
    select value, higher_is_better
    from find_history(?)
    join run_metric using (run_id)
    where metric = ? and value is not null and state in ('completed', 'imported')
    order by position
"""
