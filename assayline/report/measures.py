"""Metrics and limits as every page shows them: columns, tables, figures and charts, with one name and unit."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from assayline.report.charts import draw_points
from assayline.report.document import Chart, Column, Figure, Quote, Table, tabulate
from assayline.store.database import Row
from assayline.words import (
    count,
    name_metric,
    show_known,
    show_metric,
    show_number,
    show_range,
    show_seconds,
    show_share,
    show_value,
)

Show = Callable[[Any], str]


def show_of(metric: str) -> Show:
    """Return the format of a column of a metric: seconds, a share, or a number whose unit is in its name."""
    if metric.endswith("_s") and not metric.endswith("_per_s"):
        return show_seconds
    return show_share if metric.endswith("_share") or metric == "accuracy" else show_value


def measured(*metrics: str, is_wide: bool = False) -> list[Column]:
    """Return a column per metric, for rows that have them by name."""
    return [Column(name_metric(metric), metric, show_of(metric), is_wide) for metric in metrics]


def spread(name: str, key: str, show: Show = show_share) -> list[Column]:
    """Return the columns of a value and of its 95% interval, whose ends are `key`_low and `key`_high."""
    return [Column(name, key, show), Column("95% CI", (f"{key}_low", f"{key}_high"), show)]


def valued(header: str, key: str) -> Column:
    """Return the column of a value whose unit is in its row."""
    return Column(header, lambda row: show_metric(row[key], row["unit"]), show_number)


def show_interval(row: Row) -> str:
    """Format the 95% interval of a row with low, high and unit."""
    return show_range(*(show_metric(row[end], row["unit"]) for end in ("low", "high")))


METRICS = (
    Column("metric", "metric"),
    valued("value", "value"),
    Column("95% CI", show_interval, show_number),
    Column("n", "n", show_known),
    Column("metric_value", "source", is_wide=True),
)
CHANGES: tuple[Column, ...] = (
    Column("metric", lambda row: name_metric(row["metric"])),
    valued("run", "candidate_value"),
    valued("baseline", "baseline_value"),
)


def tabulate_metrics(metrics: Iterable[Row], is_folded: bool = False) -> Table:
    """Tabulate the metrics of a run, rows of `read_metric_table`."""
    return tabulate("Metrics of the run", METRICS, metrics, is_folded)


def head(name: str) -> str:
    """Return a metric's name at the beginning of a line."""
    return name[:1].upper() + name[1:]


def make_figure(metric: str, row: Row | None, detail: str | None = None, is_bad: bool = False) -> Figure | None:
    """Return the figure of a metric, with its 95% interval unless there is another `detail`; None without a value."""
    if row is None or row["value"] is None:
        return None
    interval = show_interval(row) if row.get("low") is not None else ""
    told = detail if detail is not None else f"95%: {interval}" if interval else count(row.get("n"), "request")
    return Figure(head(name_metric(metric)), show_metric(row["value"], row["unit"]), told, is_bad)


ENDS = ("low", "high")


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def chart_shares(
    title: str,
    described: str,
    axis: str,
    rows: Iterable[Row],
    keys: Mapping[str, str],
    show: Show = show_share,
    **how: Any,
) -> Chart | None:
    """Draw shares, or differences of shares, in percent with their 95% intervals; None without rows.

    `keys` are the columns of name, value, low and high. The description ends with the numbers.
    """
    points = [
        {
            "name": row[keys["name"]],
            **{end: None if row[keys[end]] is None else 100 * row[keys[end]] for end in ("value", "low", "high")},
            "shown": show(row[keys["value"]]) + _in_brackets(show_range(*(show(row[keys[end]]) for end in ENDS))),
            "is_pale": bool(row.get("obstacle")),
        }
        for row in rows
    ]
    if not points:
        return None
    words = "; ".join(f"{point['name']} {point['shown']}" for point in points)
    return Chart(title, f"{described}: {words}.", draw_points(points, axis, **how))


SPEC_CHARACTERS = 6_000


def quote_spec(label: str, spec: dict[str, Any]) -> Quote:
    """Quote a spec as JSON."""
    text = json.dumps(spec, indent=2, ensure_ascii=False)
    return Quote(label, text[:SPEC_CHARACTERS], len(text))
