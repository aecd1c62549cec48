"""Charts of a load sweep: latency against throughput with the knee, and goodput against the offered rate.

As in `charts.py`, rows are drawn unchanged, with the page's colours.
"""

import math
from collections.abc import Mapping, Sequence

from assayline.report.charts import AXIS_ROOM, NARROWEST_PIXELS, Spec, choose_unit, field, finish, layer
from assayline.store.database import Row

TALL = 260
LOW = 150
LOG_FROM = 30.0
"""Ratio of the largest to the smallest latency above which the axis is logarithmic; otherwise a single point would
dominate."""

LABEL_PIXELS = 22
"""Minimum distance between labelled points."""

ANSWERED = "answered"


def draw_latency(points: Sequence[Row], columns: Mapping[str, str], is_small: bool = False) -> Spec:
    """Draw latencies (`columns`: line name by column) against the requests per second that were answered.

    `points` are in load order, which the lines follow, and have `label` and `is_marked` in addition to the columns of
    load_point.
    """
    values = [point[column] for point in points for column in columns if point[column] is not None]
    unit, factor = choose_unit(values)
    rows = [
        {
            "order": order,
            "x": point["requests_per_s"],
            "y": point[column] * factor,
            "line": name,
            "label": point["label"],
            "is_marked": point["is_marked"],
        }
        for order, point in enumerate(points)
        for column, name in columns.items()
        if point[column] is not None and point["requests_per_s"] is not None
    ]
    lowest, highest = min(row["x"] for row in rows), max(row["x"] for row in rows)
    room = 0.2 * ((highest - lowest) or 1.0)
    base = {
        "x": field(
            "x:Q",
            title="requests per second answered",
            scale={"zero": False, "nice": False, "domain": [max(0, lowest - room / 3), highest + room]},
            axis={"tickCount": 4 if is_small else 6},
        ),
        "y": _latency_axis(unit, [value * factor for value in values]),
        "color": _colour(list(columns.values()), len(columns) > 1),
    }
    tips = [
        field("label:N", title="load"),
        field("line:N", title="latency"),
        field("y:Q", title=unit, format=".4~g"),
        field("x:Q", title="requests/s answered", format=".4~g"),
    ]
    layers = [
        *_draw_knee(points),
        layer(rows, {"type": "line", "strokeWidth": 1.5}, **base, order="order:Q"),
        layer(rows, {"type": "point", "filled": True, "size": 40, "opacity": 1}, **base, tooltip=tips),
        *_ring(rows),
    ]
    if not is_small:
        first = [row for row in rows if row["line"] == next(iter(columns.values()))]
        layers.append(
            layer(
                _choose_named(first, is_log=_is_log(values)),
                {"type": "text", "style": "percentile-name", "align": "left", "angle": 320, "dx": 6, "dy": -5},
                x="x:Q",
                y="y:Q",
                text="label:N",
            )
        )
    return finish(layers, LOW if is_small else TALL)


def draw_goodput(points: Sequence[Row], goodput: Sequence[Row], offered: Mapping[str, float]) -> Spec:
    """Draw answered and good requests per second against the offered rate.

    `goodput` are rows of its model, `offered` the rates by run.
    """
    marked = {point["run_id"] for point in points if point["is_marked"]}
    answered = [
        {
            "x": offered[point["run_id"]],
            "y": point["requests_per_s"],
            "line": ANSWERED,
            "is_marked": point["run_id"] in marked,
        }
        for point in points
        if point["run_id"] in offered and point["requests_per_s"] is not None
    ]
    good = [
        {
            "x": offered[row["run_id"]],
            "y": row["good_requests_per_s"],
            "line": f"good for {row['slo']}",
            "is_marked": row["run_id"] in marked,
        }
        for row in goodput
        if row["run_id"] in offered and row["good_requests_per_s"] is not None
    ]
    end = max(offered.values())
    diagonal = layer([{"x": 0, "y": 0}, {"x": end, "y": end}], {"type": "line", "style": "window"}, x="x:Q", y="y:Q")
    y = field("y:Q", title="requests per second", axis={"tickCount": 4, "minExtent": AXIS_ROOM})
    lines = _draw_over_offered([*answered, *good], y)
    layers = [diagonal, *_draw_knee(points, offered), *lines, *_ring([*answered, *good])]
    return finish(layers, TALL)


def draw_good_share(goodput: Sequence[Row], offered: Mapping[str, float]) -> Spec:
    """Draw the share of good requests against the offered rate."""
    rows = [
        {"x": offered[row["run_id"]], "y": row["good_share"], "line": f"good for {row['slo']}"}
        for row in goodput
        if row["run_id"] in offered and row["good_share"] is not None
    ]
    axis = {"format": "%", "tickCount": 4, "minExtent": AXIS_ROOM}
    y = field("y:Q", title="share of requests", scale={"domain": [0, 1]}, axis=axis)
    return finish(_draw_over_offered(rows, y, [ANSWERED]), LOW)


def _draw_over_offered(rows: list[Row], y: Spec, before: Sequence[str] = ()) -> list[Spec]:
    """Draw lines and points; `before` are lines of the chart above, whose colours are not reused."""
    names = [*before, *dict.fromkeys(row["line"] for row in rows)]
    base = {
        "x": field("x:Q", title="requests per second offered", scale={"zero": True}, axis={"tickCount": 6}),
        "y": y,
        "color": _colour(names, True, shown=names[len(before) :]),
    }
    tips = [
        field("line:N", title="requests"),
        field("x:Q", title="offered per second", format=".4~g"),
        field("y:Q", title=y["title"], format=".4~g"),
    ]
    return [
        layer(rows, {"type": "line", "strokeWidth": 1.5}, **base),
        layer(rows, {"type": "point", "filled": True, "size": 40, "opacity": 1}, **base, tooltip=tips),
    ]


def _draw_knee(points: Sequence[Row], offered: Mapping[str, float] | None = None) -> list[Spec]:
    """Draw a line at the knee with its name; on the offered axis, only if its offered rate is known."""
    xs = [
        point["requests_per_s"] if offered is None else offered.get(point["run_id"])
        for point in points
        if point["is_knee"]
    ]
    rows = [{"x": x, "name": "knee"} for x in xs if x is not None]
    if not rows:
        return []
    return [
        layer(rows, {"type": "rule", "style": "percentile"}, x="x:Q"),
        layer(
            rows,
            {"type": "text", "style": "percentile-name", "align": "center", "baseline": "bottom"},
            x="x:Q",
            y={"value": -2},
            text="name:N",
        ),
    ]


def _ring(rows: Sequence[Row]) -> list[Spec]:
    """Draw rings around flagged points."""
    marked = [row for row in rows if row["is_marked"]]
    return [layer(marked, {"type": "point", "style": "flag"}, x="x:Q", y="y:Q")] if marked else []


def _choose_named(rows: Sequence[Row], is_log: bool) -> list[Row]:
    """Return the points whose labels fit on the narrowest chart, the ends first; the table has all."""
    height = math.log if is_log else float
    heights = [height(row["y"]) for row in rows]
    widest, lowest, tallest = max(row["x"] for row in rows), min(heights), max(heights) - min(heights)
    named: list[tuple[tuple[float, float], Row]] = []
    for row in sorted(rows, key=lambda row: row["order"] not in (rows[0]["order"], rows[-1]["order"])):
        spot = (NARROWEST_PIXELS * row["x"] / widest, TALL * (height(row["y"]) - lowest) / (tallest or 1.0))
        if all(math.dist(spot, other) > LABEL_PIXELS for other, _ in named):
            named.append((spot, row))
    return [row for _, row in named]


def _is_log(values: Sequence[float]) -> bool:
    return 0 < LOG_FROM * min(values) < max(values)


def _latency_axis(unit: str, values: Sequence[float]) -> Spec:
    """Return an axis from 0, or a logarithmic one if a single point would dominate."""
    lowest, highest = min(values), max(values)
    if not _is_log(values):
        return field("y:Q", title=unit, axis={"tickCount": 4, "minExtent": AXIS_ROOM})
    decades = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 3)]
    axis = {"values": ticks, "format": "~g", "minExtent": AXIS_ROOM}
    return field("y:Q", title=unit, scale={"type": "log", "nice": False, "padding": 14}, axis=axis)


def _colour(names: Sequence[str], has_legend: bool, shown: Sequence[str] | None = None) -> Spec:
    """Assign colours by the position of a line's name; the page defines them for light and dark mode."""
    columns = {"expr": f"width < {2 * NARROWEST_PIXELS} ? 1 : {len(names)}"}
    legend = (
        {"orient": "top", "title": None, "values": list(shown or names), "columns": columns} if has_legend else None
    )
    return field("line:N", scale={"domain": list(names)}, legend=legend)
