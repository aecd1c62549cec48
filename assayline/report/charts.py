"""Charts as Vega-Lite specifications.

Colours are named styles, to which the page assigns values for light and dark mode. Each function draws rows of a SQL
model and aggregates nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from assayline.store.database import Row

Spec = dict[str, Any]
"""A specification of Vega-Lite, or a part of it."""
VEGA_LITE = "6.4"
_SCHEMA = f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE}.json"
_TYPES = {"Q": "quantitative", "N": "nominal", "T": "temporal"}

HEIGHT = 170
AXIS_ROOM = 46
"""Pixels for the labels of a vertical axis, equal in all charts so that their time axes align."""
_RATE_AXIS = {"tickCount": 4, "minExtent": AXIS_ROOM}

MARKED_EVENTS = ("failed", "reduced", "restored", "grown")
NARROWEST_PIXELS = 300
"""Width of a chart on a phone, on which names must not overlap either."""
LETTER_PIXELS = 6.5
LINE_PIXELS = 13
MOST_LINES = 3
"""Maximum number of lines of names above a chart; a mark without room has its name in the tooltip."""

LOW_SHARE = 0.1
"""A share that stays below this gets a scaled axis, so that it is visible."""

LATENCIES = {
    "ttft_s": "Time to first token (TTFT)",
    "tpot_s": "Time per output token (TPOT)",
    "e2e_s": "End-to-end latency (E2E)",
}


def draw_distribution(bins: list[Row], percentiles: list[Row]) -> Spec:
    """Draw a histogram of one latency with its percentiles. The last bin is open-ended."""
    unit, factor = choose_unit([row["from_s"] for row in bins])
    width_s = next((row["until_s"] - row["from_s"] for row in bins if row["until_s"] is not None), 0.0)
    bars = [
        {
            "from": row["from_s"] * factor,
            "until": (row["until_s"] if row["until_s"] is not None else row["from_s"] + width_s) * factor,
            "requests": row["requests"],
            "style": "above" if row["until_s"] is None else "inside",
            "tip": f"at least {row['from_s'] * factor:.4g} {unit}"
            if row["until_s"] is None
            else f"{row['from_s'] * factor:.4g} to {row['until_s'] * factor:.4g} {unit}",
        }
        for row in bins
        if row["requests"] or row["until_s"] is not None
    ]
    end = max(bar["until"] for bar in bars)
    lines = [
        {"at": row["value_s"] * factor, "name": f"p{100 * row['percentile']:g}"}
        for row in percentiles
        if row["percentile"] in (0.5, 0.95) and row["value_s"] is not None and row["value_s"] * factor <= end
    ]
    histogram = layer(
        bars,
        {"type": "bar", "style": "quantity"},
        x=field(
            "from:Q",
            bin="binned",
            title=unit,
            scale={"zero": False, "nice": False},
            axis={"tickCount": 5, "labelOverlap": True},
        ),
        x2={"field": "until"},
        y=field("requests:Q", title="requests", axis={"tickCount": 4, "minExtent": AXIS_ROOM}),
        opacity={"condition": {"test": "datum.style === 'above'", "value": 0.45}, "value": 1.0},
        tooltip=[field("tip:N", title="latency"), field("requests:Q", title="requests")],
    )
    rules = layer(lines, {"type": "rule", "style": "percentile"}, x="at:Q")
    first = bars[0]["from"]
    names = name_marks([(line["at"], (line["at"] - first) / (end - first), line["name"]) for line in lines])
    return finish([histogram, *([rules] if lines else []), *names], 140)


def draw_rate(activity: list[Row], events: list[Row], stretches: list[Row]) -> Spec:
    """Draw output tokens per second over time, with engine events and the measured interval."""
    y = field("output_tokens_per_s:Q", title="output tokens per second", axis=_RATE_AXIS)
    area = _draw_slices(_slices(activity), activity, y)
    return finish([area, *_stretch_rules(stretches), *_event_rules(activity, events)])


def draw_in_flight(activity: list[Row], engines: list[Row], events: list[Row], stretches: list[Row]) -> Spec:
    """Draw requests in flight over time, with each engine's maximum."""
    y = field("in_flight:Q", title="requests in flight", axis=_RATE_AXIS)
    flown = _draw_slices(_slices(activity), activity, y)
    windows = [
        {
            "from": engine["work_began_at_s"],
            "until": engine["work_ended_at_s"],
            "window": engine["last_max_concurrency"],
            "name": f"{engine['worker']}, engine {engine['engine_generation']}",
        }
        for engine in engines
        if engine["work_began_at_s"] is not None and engine["last_max_concurrency"] is not None
    ]
    marks = [*_stretch_rules(stretches), *_event_rules(activity, events)]
    if not windows:
        return finish([flown, *marks])
    lines = layer(
        windows,
        {"type": "rule", "style": "window", "clip": True},
        x="from:Q",
        x2={"field": "until"},
        y="window:Q",
        tooltip=[field("name:N", title="engine"), field("window:Q", title="max concurrency")],
    )
    return finish([flown, lines, *marks])


def draw_line(
    activity: list[Row], telemetry: list[Row], events: list[Row], column: str, title: str, is_share: bool = False
) -> Spec:
    """Draw a telemetry column over time, with engine events. Slices without a sample are left out."""
    slices = [
        {"from": row["begins_at_s"], "until": row["ends_at_s"], "value": row[column]}
        for row in telemetry
        if row[column] is not None
    ]
    is_high = is_share and max(row["value"] for row in slices) >= LOW_SHARE
    y = field(
        "value:Q",
        title=title,
        scale={"domain": [0, 1]} if is_high else {"zero": True},
        axis={**_RATE_AXIS, "format": ".3~%" if is_share else ""},
    )
    area = _draw_slices(slices, activity, y, ".1%" if is_share else ",.4~g")
    return finish([area, *_event_rules(activity, events)], 110)


def draw_intervals(rows: list[Row]) -> Spec:
    """Draw mean scores with their intervals, one line each: rows have name, mean, low, high."""
    y = field("name:N", title=None, sort=None, axis={"labelLimit": 160, "ticks": False, "domain": False})
    bars = layer(
        rows,
        {"type": "rule", "style": "interval"},
        y=y,
        x=field("low:Q", title="mean score", scale={"domain": [0, 1]}, axis={"format": "%", "tickCount": 5}),
        x2={"field": "high"},
    )
    points = layer(
        rows,
        {"type": "point", "style": "estimate"},
        y=y,
        x="mean:Q",
        tooltip=[
            field("name:N", title="scorer"),
            field("mean:Q", title="mean score", format=".1%"),
            field("low:Q", title="low", format=".1%"),
            field("high:Q", title="high", format=".1%"),
        ],
    )
    return finish([bars, points], 34 * len(rows) + 10)


def draw_differences(rows: list[Row]) -> Spec:
    """Draw differences of mean scores with their intervals, around a line at zero."""
    points = [{"name": row["scorer"], **{key: 100 * row[key] for key in ("difference", "low", "high")}} for row in rows]
    y = field("name:N", title=None, sort=None, axis={"labelLimit": 160, "ticks": False, "domain": False})
    spans = layer(
        points,
        {"type": "rule", "style": "interval"},
        y=y,
        x=field("low:Q", title="change in percentage points", axis={"tickCount": 6}),
        x2={"field": "high"},
    )
    estimates = layer(
        points,
        {"type": "point", "style": "estimate"},
        y=y,
        x="difference:Q",
        tooltip=[field("name:N", title="scorer"), field("difference:Q", title="points", format="+.1f")],
    )
    zero = layer([{"at": 0}], {"type": "rule", "style": "percentile"}, x="at:Q")
    return finish([zero, spans, estimates], 34 * len(rows) + 10)


def draw_repeats(values: Mapping[str, Sequence[float]], medians: Mapping[str, float], unit: str) -> Spec:
    """Draw a dot per repeat and a line at the median, by configuration."""
    y = field("name:N", title=None, sort=list(values), axis={"labelLimit": 130, "ticks": False, "domain": False})
    axis = {"tickCount": 4, "format": ",.6~g"}
    x = field("value:Q", title=unit, scale={"zero": False, "padding": 10}, axis=axis)
    dots = [{"name": name, "value": value} for name, found in values.items() for value in found]
    lines = [{"name": name, "value": value} for name, value in medians.items()]
    tips = [field("name:N", title="configuration"), field("value:Q", title=unit, format=",.4~g")]
    layers = [layer(dots, {"type": "point", "style": "repeat"}, x=x, y=y, tooltip=tips)]
    if lines:
        layers.append(layer(lines, {"type": "tick", "style": "median"}, x=x, y=y, tooltip=tips))
    return finish(layers, 26 * len(values) + 10)


MOST_NAMED = 6
"""Maximum number of configurations whose names are all drawn."""


def draw_frontier(rows: Sequence[Row], unit: str) -> Spec:
    """Draw recovery against cost with both intervals: rows of `frontier` with `name`. Dominated ones are grey.

    Names are above and below the points in turn, in the order of the costs; among many, grey ones have none.
    """
    points = [
        {
            "name": row["name"],
            "cost": row["cost_per_right_answer"],
            **{end: row[end] for end in ("cost_low", "cost_high")},
            **{
                end: None if row[end] is None else 100 * row[end]
                for end in ("recovery", "recovery_low", "recovery_high")
            },
            "is_grey": bool(row["is_dominated"]),
            "is_below": place % 2 == 1,
            "is_named": len(rows) <= MOST_NAMED or not row["is_dominated"] or row["verdict"] == "baseline",
        }
        for place, row in enumerate(sorted(rows, key=lambda row: row["cost_per_right_answer"]))
    ]
    axis = {"tickCount": 5, "format": ".3~g"}
    base: Spec = {
        "x": field("cost:Q", title=unit.replace("/", " per "), scale={"zero": False, "padding": 30}, axis=axis),
        "y": field("recovery:Q", title="recovery (%)", scale={"zero": False, "padding": 12}, axis=axis),
        "opacity": {"condition": {"test": "datum.is_grey", "value": 0.35}, "value": 1.0},
        "tooltip": [
            field("name:N", title="configuration"),
            field("recovery:Q", title="recovery (%)", format=".4~g"),
            field("cost:Q", title=unit, format=".3~g"),
        ],
    }
    interval = {"type": "rule", "style": "interval"}
    heights = layer(points, interval, **base | {"y": "recovery_low:Q", "y2": {"field": "recovery_high"}})
    widths = layer(points, interval, **base | {"x": "cost_low:Q", "x2": {"field": "cost_high"}})
    costs = [row["cost_per_right_answer"] for row in rows]
    middle = (min(costs) + max(costs)) / 2
    is_left = f"datum.cost <= {middle}"
    names = layer(
        [point for point in points if point["is_named"]],
        {
            "type": "text",
            "style": "percentile-name",
            "align": {"expr": f"{is_left} ? 'left' : 'right'"},
            "dx": {"expr": f"{is_left} ? 7 : -7"},
            "dy": {"expr": "datum.is_below ? 11 : -9"},
        },
        **base,
        text="name:N",
    )
    return finish([heights, widths, layer(points, {"type": "point", "style": "estimate"}, **base), names], 260)


def _slices(activity: list[Row]) -> list[Row]:
    return [
        {
            "from": row["begins_at_s"],
            "until": row["ends_at_s"],
            "in_flight": row["mean_in_flight_requests"],
            "output_tokens_per_s": row["output_tokens_per_s"],
        }
        for row in activity
    ]


def _draw_slices(slices: list[Row], activity: list[Row], y: Spec, tip_format: str = ",.4~g") -> Spec:
    """Draw a bar per slice of time, on the axis of `activity`."""
    tips = [
        field("from:Q", title="from second", format=".4~g"),
        {"field": y["field"], "type": y["type"], "title": y["title"], "format": tip_format},
    ]
    return layer(
        slices,
        {"type": "bar", "style": "quantity"},
        x=_time_axis(activity),
        x2={"field": "until"},
        y=y,
        tooltip=tips,
    )


def _time_axis(activity: list[Row]) -> Spec:
    domain = [activity[0]["begins_at_s"], activity[-1]["ends_at_s"]]
    return field(
        "from:Q",
        bin="binned",
        title="seconds since the run's start",
        scale={"domain": domain, "nice": False},
        axis={"tickCount": 6},
    )


def _stretch_rules(stretches: list[Row]) -> list[Spec]:
    """Draw lines at the start and end of each measured interval of a load."""
    ends = [
        {"at": row[column], "what": what}
        for row in stretches
        for column, what in (("begins_at_s", "measured interval starts"), ("ends_at_s", "measured interval ends"))
    ]
    if not ends:
        return []
    tips = [field("what:N", title="load"), field("at:Q", title="time (s)", format=".4~g")]
    return [layer(ends, {"type": "rule", "style": "percentile"}, x="at:Q", tooltip=tips)]


def _event_rules(activity: list[Row], events: list[Row]) -> list[Spec]:
    """Draw a line per event within the chart's time, with its name at the top."""
    begin, end = activity[0]["begins_at_s"], activity[-1]["ends_at_s"]
    at_once: dict[float, list[Row]] = {}
    for event in events:
        if begin <= event["at_s"] <= end and event["event"] in MARKED_EVENTS:
            at_once.setdefault(event["at_s"], []).append(event)
    if not at_once:
        return []
    shown = [
        {
            "at": at_s,
            "event": ", ".join(dict.fromkeys(event["event"] for event in together)),
            "what": " ".join(" ".join(event["message"] or "" for event in together).split())[:300],
        }
        for at_s, together in at_once.items()
    ]
    rules = layer(
        shown,
        {"type": "rule", "style": "event"},
        x="at:Q",
        tooltip=[
            field("event:N", title="engine"),
            field("at:Q", title="time (s)", format=".4~g"),
            field("what:N", title="message"),
        ],
    )
    names = [(row["at"], (row["at"] - begin) / ((end - begin) or 1), str(row["event"])) for row in shown]
    return [rules, *name_marks(names, "event-name")]


def name_marks(marks: Sequence[tuple[Any, float, str]], style: str = "percentile-name", x: str = "at:Q") -> list[Spec]:
    """Place names above a chart at their marks, on up to MOST_LINES lines without overlap.

    A mark is its value on the axis, its relative position from left (0) to right (1), and its name.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in range(MOST_LINES)]
    layers = []
    for at, place, name in marks:
        width = (len(name) * LETTER_PIXELS + 8) / NARROWEST_PIXELS
        begin, end = (place - width, place) if place > 0.5 else (place, place + width)
        for line, spans in enumerate(taken):
            if all(end <= other[0] or other[1] <= begin for other in spans):
                spans.append((begin, end))
                layers.append(
                    layer(
                        [{"at": at, "name": name}],
                        {
                            "type": "text",
                            "style": style,
                            "align": "right" if place > 0.5 else "left",
                            "dx": -3 if place > 0.5 else 3,
                            "baseline": "bottom",
                        },
                        x=x,
                        y={"value": -2 - line * LINE_PIXELS},
                        text="name:N",
                    )
                )
                break
    return layers


def choose_unit(seconds: list[float]) -> tuple[str, float]:
    """Return the unit that suits the largest value, and the factor from seconds to it."""
    largest = max(seconds, default=0.0)
    return ("seconds", 1.0) if largest >= 1 else ("milliseconds", 1e3) if largest >= 1e-3 else ("microseconds", 1e6)


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
