"""Charts as Vega-Lite specifications, of six kinds.

Colours are named styles, to which the page assigns values for light and dark mode. Each function draws rows of a SQL
model and aggregates nothing.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from assayline.stats.rereads import SMALLEST
from assayline.store.database import Row

Spec = dict[str, Any]
"""A specification of Vega-Lite, or a part of it."""
VEGA_LITE = "6.4"
_SCHEMA = f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE}.json"
_TYPES = {"Q": "quantitative", "N": "nominal", "T": "temporal"}

LOW, HEIGHT, TALL = 110, 170, 260
AXIS_ROOM = 46
"""Pixels for the labels of a vertical axis, equal in all charts so that their time axes align."""
Y_AXIS = {"tickCount": 4, "minExtent": AXIS_ROOM}
NAME_PIXELS = 160
"""Maximum width of the names of rows; a longer one ends in an ellipsis."""

MARKED_EVENTS = ("failed", "reduced", "restored", "grown")
NARROWEST_PIXELS = 300
"""Width of a chart on a phone, on which names must not overlap either."""
LETTER_PIXELS = 6.5
LINE_PIXELS = 13
MOST_LINES = 3
"""Maximum number of lines of names above a chart; a mark without room has its name in the tooltip."""
LABEL_PIXELS = 22
"""Minimum distance between the labelled points of a curve."""
LOW_SHARE = 0.1
"""A share that stays below this gets a scaled axis, so that it is visible."""
LOG_FROM = 30.0
"""Ratio of the largest to the smallest latency above which the axis is logarithmic; otherwise a single point would
dominate."""
MOST_NAMED = 6
"""Maximum number of configurations whose names are all drawn."""


def draw_points(
    rows: Sequence[Row], unit: str, *, medians: Mapping[str, float] | None = None, origin: bool = False
) -> Spec:
    """Draw values by name, in this order, with their intervals.

    Rows have name and value, and may have low, high, shown (the value in words) and is_pale. `medians` are marked by a
    line, and so is zero if `origin` is set.
    """
    names = list(dict.fromkeys(row["name"] for row in rows))
    y = field("name:N", title=None, sort=names, axis={"labelLimit": NAME_PIXELS, "ticks": False, "domain": False})
    axis = {"tickCount": 4, "format": ",.9~g"}
    x = field("value:Q", title=unit, scale={"zero": False, "padding": 10}, axis=axis)
    tips = [field("name:N", title="name"), field("value:Q", title=unit, format=",.4~g")]
    if all("shown" in row for row in rows):
        tips[1] = field("shown:N", title="value")
    layers = [layer([{"at": 0}], {"type": "rule", "style": "percentile"}, x="at:Q")] if origin else []
    if sure := [row for row in rows if row.get("low") is not None]:
        low = field("low:Q", title=unit)
        layers.append(layer(sure, {"type": "rule", "style": "interval"}, x=low, x2={"field": "high"}, y=y))
    for is_pale, style in ((False, "estimate" if sure or medians is None else "repeat"), (True, "night-uncounted")):
        if shown := [row for row in rows if row.get("is_pale", False) == is_pale]:
            layers.append(layer(shown, {"type": "point", "style": style}, x=x, y=y, tooltip=tips))
    if medians:
        lines = [{"name": name, "value": value} for name, value in medians.items()]
        layers.append(layer(lines, {"type": "tick", "style": "median"}, x=x, y=y, tooltip=tips))
    return finish(layers, (26 if medians is not None or len(names) > MOST_NAMED else 34) * len(names) + 10)


def draw_distribution(bins: Sequence[Row], percentiles: Mapping[str, Row]) -> Spec:
    """Draw a histogram of one latency with p50 and p95, rows of metric_values. The last bin is open-ended."""
    unit, factor = choose_unit([row["from_s"] for row in bins])
    width_s = next((row["until_s"] - row["from_s"] for row in bins if row["until_s"] is not None), 0.0)
    bars = []
    for row in bins:
        begin, is_open = row["from_s"] * factor, row["until_s"] is None
        end = (row["from_s"] + width_s if is_open else row["until_s"]) * factor
        tip = f"at least {begin:.4g} {unit}" if is_open else f"{begin:.4g} to {end:.4g} {unit}"
        if row["requests"] or not is_open:
            bars.append({"from": begin, "until": end, "requests": row["requests"], "is_open": is_open, "tip": tip})
    first, last = bars[0]["from"], max(bar["until"] for bar in bars)
    lines = [
        {"at": value * factor, "name": name}
        for name in ("p50", "p95")
        if (value := percentiles[name]["value"]) is not None and value * factor <= last
    ]
    axis = {"tickCount": 5, "labelOverlap": True}
    histogram = layer(
        bars,
        {"type": "bar", "style": "quantity"},
        x=field("from:Q", bin="binned", title=unit, scale={"zero": False, "nice": False}, axis=axis),
        x2={"field": "until"},
        y=field("requests:Q", title="requests", axis=Y_AXIS),
        opacity={"condition": {"test": "datum.is_open", "value": 0.45}, "value": 1.0},
        tooltip=[field("tip:N", title="latency"), field("requests:Q", title="requests")],
    )
    rules = [layer(lines, {"type": "rule", "style": "percentile"}, x="at:Q")] if lines else []
    names = name_marks([(line["at"], (line["at"] - first) / (last - first), line["name"]) for line in lines])
    return finish([histogram, *rules, *names], 140)


def draw_timeline(
    slices: Sequence[Row],
    title: str,
    events: Sequence[Row],
    *,
    span: tuple[float, float],
    stretches: Sequence[Row] = (),
    windows: Sequence[Row] = (),
    is_share: bool = False,
    height: int = HEIGHT,
) -> Spec:
    """Draw a quantity over the seconds of a run: slices have from, until and value; `span` are the ends of the axis.

    Lines mark engine events and the measured intervals of a load; `windows` (from, until, value, name) are limits.
    """
    is_high = is_share and max(row["value"] for row in slices) >= LOW_SHARE
    axis = {**Y_AXIS, "format": ".3~%" if is_share else ",.9~g"}
    y = field("value:Q", title=title, scale={"domain": [0, 1]} if is_high else {"zero": True}, axis=axis)
    scale = {"domain": [*span], "nice": False}
    x = field("from:Q", bin="binned", title="seconds since the run's start", scale=scale, axis={"tickCount": 6})
    value = field("value:Q", title=title, format=".1%" if is_share else ",.4~g")
    tips = [field("from:Q", title="from second", format=".4~g"), value]
    layers = [layer(slices, {"type": "bar", "style": "quantity"}, x=x, x2={"field": "until"}, y=y, tooltip=tips)]
    if windows:
        rule = {"type": "rule", "style": "window", "clip": True}
        tips = [field("name:N", title="engine"), field("value:Q", title="max concurrency")]
        layers.append(layer(windows, rule, x="from:Q", x2={"field": "until"}, y="value:Q", tooltip=tips))
    ends = [
        {"at": row[column], "what": f"measured interval {name}"}
        for row in stretches
        for column, name in (("begins_at_s", "starts"), ("ends_at_s", "ends"))
    ]
    at = field("at:Q", title="time (s)", format=".4~g")
    if ends:
        tips = [field("what:N", title="load"), at]
        layers.append(layer(ends, {"type": "rule", "style": "percentile"}, x="at:Q", tooltip=tips))
    marks: dict[float, list[Row]] = {}
    for event in events:
        if span[0] <= event["at_s"] <= span[1] and event["event"] in MARKED_EVENTS:
            marks.setdefault(event["at_s"], []).append(event)
    shown: list[Row] = [
        {
            "at": at_s,
            "event": ", ".join(dict.fromkeys(event["event"] for event in together)),
            "what": " ".join(" ".join(event["message"] or "" for event in together).split())[:300],
        }
        for at_s, together in marks.items()
    ]
    if shown:
        tips = [field("event:N", title="engine"), at, field("what:N", title="message")]
        layers.append(layer(shown, {"type": "rule", "style": "event"}, x="at:Q", tooltip=tips))
    length = (span[1] - span[0]) or 1
    names = [(row["at"], (row["at"] - span[0]) / length, str(row["event"])) for row in shown]
    return finish([*layers, *name_marks(names, "event-name")], height)


def draw_nights(
    points: Sequence[Row],
    unit: str,
    *,
    span: tuple[datetime, datetime],
    band: Row | None = None,
    levels: Sequence[tuple[datetime, float]] = (),
    marks: Mapping[datetime, tuple[str, str]] | None = None,
) -> Spec:
    """Draw a metric over nights: points have started_at, value, low, high, run, shown, is_counted and has_failed.

    `span` are the ends of the axis, `band` is the baseline's value with its low and high, `levels` the beginning and
    the value of each level, and `marks` a name and its explanation by time.
    """
    begin, end = span
    first, last = format_time(begin), format_time(end)
    rows = [
        {**row, "at": format_time(row["started_at"]), "night": f"{row['started_at']:%Y-%m-%d %H:%M}"} for row in points
    ]
    for row in rows:
        del row["started_at"]
    dates = "%H:%M" if begin.date() == end.date() else "%d %b %H:%M" if end - begin < timedelta(days=6) else "%d %b"
    axis = {"tickCount": 6, "format": dates, "labelOverlap": True, "labelSeparation": 8, "labelBound": True}
    base = {
        "x": field("at:T", title=None, scale={"type": "utc", "padding": 12}, axis=axis),
        "y": field("value:Q", title=unit, scale={"zero": False, "padding": 8}, axis=Y_AXIS),
    }
    until = {"x": "at:T", "x2": {"field": "until"}}
    layers = []
    if band is not None:
        level = {"at": first, "until": last, "value": band["value"]}
        if None not in (band["low"], band["high"]):
            ends = {"y": "low:Q", "y2": {"field": "high"}}
            drawn = {"at": first, "until": last, "low": band["low"], "high": band["high"]}
            layers.append(layer([drawn], {"type": "rect", "style": "band"}, **until, **ends))
        layers.append(layer([level], {"type": "rule", "style": "window"}, **until, y="value:Q"))
    if marks:
        shown = [
            {"at": format_time(at), "night": f"{at:%Y-%m-%d %H:%M}", "what": what[:300]}
            for at, (_, what) in marks.items()
        ]
        tips = [field("night:N", title="since (UTC)"), field("what:N", title="changed")]
        layers.append(layer(shown, {"type": "rule", "style": "percentile"}, x="at:T", tooltip=tips))
        whole = (end - begin) or timedelta(days=1)
        layers += name_marks(
            [(format_time(at), (at - begin) / whole, name) for at, (name, _) in marks.items()], x="at:T"
        )
    if sure := [row for row in rows if row["low"] is not None]:
        low = field("low:Q", title=unit)
        layers.append(
            layer(sure, {"type": "rule", "style": "night-interval"}, x=base["x"], y=low, y2={"field": "high"})
        )
    tips = [
        field(f"{name}:N", title=title) for name, title in (("run", "run"), ("night", "started (UTC)"), ("shown", unit))
    ]
    for is_counted, style in ((True, "night"), (False, "night-uncounted")):
        if dots := [row for row in rows if row["is_counted"] == is_counted]:
            layers.append(layer(dots, {"type": "point", "style": style}, **base, tooltip=tips))
    if flagged := [row for row in rows if row["has_failed"]]:
        layers.append(layer(flagged, {"type": "point", "style": "flag"}, **base))
    if levels:
        times = [*(format_time(at) for at, _ in levels), last]
        steps = [
            {"at": at, "until": till, "value": value}
            for at, till, (_, value) in zip(times, times[1:], levels, strict=False)
        ]
        layers.append(layer(steps, {"type": "rule", "style": "level"}, **until, y="value:Q"))
        layers.append(layer([{"at": at} for at in times[1:-1]], {"type": "rule", "style": "event"}, x="at:T"))
    return finish(layers, 190)


def draw_frontier(rows: Sequence[Row], unit: str, quality: str = "recovery") -> Spec:
    """Draw recovery or kl against cost with both intervals: rows of `frontier` with `name`. Dominated ones are grey.

    Names are above and below the points in turn, in the order of the costs; among many, grey ones have none.
    """
    title, is_log = ("kl (nats/token)", True) if quality == "kl" else ("recovery (%)", False)

    def scale(value: float | None) -> float | None:
        return value if value is None else max(value, SMALLEST) if is_log else 100 * value

    points = [
        {
            "name": row["name"],
            **{end: row[end] for end in ("cost", "cost_low", "cost_high")},
            **{f"quality{end}": scale(row[f"{quality}{end}"]) for end in ("", "_low", "_high")},
            "is_grey": bool(row["is_dominated"]),
            "is_below": place % 2 == 1,
            "is_named": len(rows) <= MOST_NAMED or not row["is_dominated"] or row["verdict"] == "baseline",
        }
        for place, row in enumerate(sorted(rows, key=lambda row: row["cost"]))
    ]
    axis = {"tickCount": 5, "format": ".3~g"}
    base: Spec = {
        "x": field("cost:Q", title=unit.replace("/", " per "), scale={"zero": False, "padding": 30}, axis=axis),
        "y": field(
            "quality:Q",
            title=title,
            scale={"type": "log", "padding": 12} if is_log else {"zero": False, "padding": 12},
            axis=axis,
        ),
        "opacity": {"condition": {"test": "datum.is_grey", "value": 0.35}, "value": 1.0},
        "tooltip": [
            field("name:N", title="configuration"),
            field("quality:Q", title=title, format=".4~g"),
            field("cost:Q", title=unit, format=".3~g"),
        ],
    }
    interval = {"type": "rule", "style": "interval"}
    heights = layer(points, interval, **base | {"y": "quality_low:Q", "y2": {"field": "quality_high"}})
    widths = layer(points, interval, **base | {"x": "cost_low:Q", "x2": {"field": "cost_high"}})
    costs = [row["cost"] for row in rows]
    is_left = f"datum.cost <= {(min(costs) + max(costs)) / 2}"
    text = {
        "type": "text",
        "style": "percentile-name",
        "align": {"expr": f"{is_left} ? 'left' : 'right'"},
        "dx": {"expr": f"{is_left} ? 7 : -7"},
        "dy": {"expr": "datum.is_below ? 11 : -9"},
    }
    names = layer([point for point in points if point["is_named"]], text, **base, text="name:N")
    return finish([heights, widths, layer(points, {"type": "point", "style": "estimate"}, **base), names], TALL)


def draw_curve(
    rows: Sequence[Row],
    titles: tuple[str, str],
    *,
    lines: Sequence[str],
    knee: float | None = None,
    diagonal: float = 0.0,
    is_share: bool = False,
    is_small: bool = False,
) -> Spec:
    """Draw lines over a load, in the order of rows, which have x, y, line, label and is_marked; marked ones get a ring.

    `titles` are those of the axes. `lines` are all names, whose places give the colours, also those of another chart.
    The first line's points are labelled if there is room. A vertical axis of times (not requests) starts at zero, or
    is logarithmic if a single point would dominate. `diagonal` is the end of a line on which y equals x.
    """
    x_title, y_title = titles
    shown = [line for line in lines if any(row["line"] == line for row in rows)]
    values, has_requests = [row["y"] for row in rows], "requests" in y_title
    is_log = not has_requests and 0 < LOG_FROM * min(values) < max(values)
    y = field("y:Q", title=y_title, axis=Y_AXIS)
    if is_share:
        y |= {"scale": {"domain": [0, 1]}, "axis": {**Y_AXIS, "format": "%"}}
    elif is_log:
        decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in (1, 3)]
        scale = {"type": "log", "nice": False, "padding": 14}
        y |= {"scale": scale, "axis": {"values": ticks, "format": "~g", "minExtent": AXIS_ROOM}}
    lowest, highest = min(row["x"] for row in rows), max(row["x"] for row in rows)
    room = 0.2 * ((highest - lowest) or 1.0)
    span = {"zero": False, "nice": False, "domain": [max(0, lowest - room / 3), highest + room]}
    columns = {"expr": f"width < {2 * NARROWEST_PIXELS} ? 1 : {len(lines)}"}
    legend = {"orient": "top", "title": None, "values": shown, "columns": columns} if len(lines) > 1 else None
    base = {
        "x": field(
            "x:Q",
            title=x_title,
            scale={"zero": True} if has_requests else span,
            axis={"tickCount": 4 if is_small else 6},
        ),
        "y": y,
        "color": field("line:N", scale={"domain": [*lines]}, legend=legend),
    }
    tips = [field("label:N", title="load"), field("line:N", title="line")]
    tips += [field(f"{name}:Q", title=title, format=".4~g") for name, title in (("x", x_title), ("y", y_title))]
    layers: list[Spec] = []
    if diagonal:
        ends: list[Row] = [{"x": 0, "y": 0}, {"x": diagonal, "y": diagonal}]
        layers.append(layer(ends, {"type": "line", "style": "window"}, x="x:Q", y="y:Q"))
    mark: Spec
    if knee is not None:
        mark = {"type": "text", "style": "percentile-name", "align": "center", "baseline": "bottom"}
        at: list[Row] = [{"x": knee, "name": "knee"}]
        layers.append(layer(at, {"type": "rule", "style": "percentile"}, x="x:Q"))
        layers.append(layer(at, mark, x="x:Q", y={"value": -2}, text="name:N"))
    ordered = [{**row, "order": order} for order, row in enumerate(rows)]
    layers.append(layer(ordered, {"type": "line", "strokeWidth": 1.5}, **base, order="order:Q"))
    layers.append(layer(ordered, {"type": "point", "filled": True, "size": 40, "opacity": 1}, **base, tooltip=tips))
    if marked := [row for row in rows if row["is_marked"]]:
        layers.append(layer(marked, {"type": "point", "style": "flag"}, x="x:Q", y="y:Q"))
    if not is_small and not has_requests:
        first = [row for row in ordered if row["line"] == lines[0]]
        mark = {"type": "text", "style": "percentile-name", "align": "left", "angle": 320, "dx": 6, "dy": -5}
        layers.append(layer(_choose_named(first, is_log=is_log), mark, x="x:Q", y="y:Q", text="label:N"))
    return finish(layers, 150 if is_small or is_share else TALL)


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


def name_marks(marks: Sequence[tuple[Any, float, str]], style: str = "percentile-name", x: str = "at:Q") -> list[Spec]:
    """Place names above a chart at their marks, on up to MOST_LINES lines without overlap.

    A mark is its value on the axis, its relative position from left (0) to right (1), and its name.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in range(MOST_LINES)]
    layers = []
    for at, place, name in marks:
        width, is_right = (len(name) * LETTER_PIXELS + 8) / NARROWEST_PIXELS, place > 0.5
        begin, end = (place - width, place) if is_right else (place, place + width)
        for line, spans in enumerate(taken):
            if all(end <= other[0] or other[1] <= begin for other in spans):
                spans.append((begin, end))
                align = {"align": "right", "dx": -3} if is_right else {"align": "left", "dx": 3}
                mark = {"type": "text", "style": style, **align, "baseline": "bottom"}
                y = {"value": -2 - line * LINE_PIXELS}
                layers.append(layer([{"at": at, "name": name}], mark, x=x, y=y, text="name:N"))
                break
    return layers


def choose_axis(unit: str, values: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which an axis shows values of a metric, and the factor to it."""
    return choose_unit(values) if unit == "s" else ("%", 100.0) if unit == "share" else (unit, 1.0)


def choose_unit(seconds: Sequence[float]) -> tuple[str, float]:
    """Return the unit that suits the largest value, and the factor from seconds to it."""
    largest = max(seconds, default=0.0)
    return ("seconds", 1.0) if largest >= 1 else ("milliseconds", 1e3) if largest >= 1e-3 else ("microseconds", 1e6)


def format_time(time: datetime) -> str:
    """Format UTC wall-clock time for a chart."""
    return f"{time:%Y-%m-%dT%H:%M:%S}Z"


def field(shorthand: str, **properties: Any) -> Spec:
    """Return a channel that shows a field; `shorthand` has the first letter of its type, such as "value:Q"."""
    name, _, letter = shorthand.partition(":")
    return {"field": name, "type": _TYPES[letter], **properties}


def layer(rows: Sequence[Row], mark: Spec, **channels: Any) -> Spec:
    """Return a layer that draws rows with `mark`. A channel is a definition, a list of them, or a shorthand."""
    encoding = {name: field(channel) if isinstance(channel, str) else channel for name, channel in channels.items()}
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def finish(layers: Sequence[Spec], height: int = HEIGHT) -> Spec:
    """Return the specification, scaled to the width of the page, which supplies the config for light and dark mode."""
    return {"$schema": _SCHEMA, "width": "container", "height": height, "layer": layers}
