"""Charts as Vega-Lite specifications.

Colours are named styles, to which the page assigns values for light and dark mode. Each function draws rows of a SQL
model and aggregates nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from assayline.store.database import Row

Spec = dict[str, Any]

HEIGHT = 170
AXIS_ROOM = 46
"""Pixels for the labels of a vertical axis, equal in all charts so that their time axes align."""

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
    histogram = (
        alt.Chart(inline(bars))
        .mark_bar(style="quantity")
        .encode(
            x=alt.X(
                "from:Q",
                bin="binned",
                title=unit,
                scale=alt.Scale(zero=False, nice=False),
                axis=alt.Axis(tickCount=5, labelOverlap=True),
            ),
            x2="until:Q",
            y=alt.Y("requests:Q", title="requests", axis=alt.Axis(tickCount=4, minExtent=AXIS_ROOM)),
            opacity=alt.condition("datum.style === 'above'", alt.value(0.45), alt.value(1.0)),
            tooltip=[alt.Tooltip("tip:N", title="latency"), alt.Tooltip("requests:Q", title="requests")],
        )
    )
    rules = alt.Chart(inline(lines)).mark_rule(style="percentile").encode(x="at:Q")
    first = bars[0]["from"]
    names = name_marks([(line["at"], (line["at"] - first) / (end - first), line["name"]) for line in lines])
    return finish(alt.layer(histogram, *([rules] if lines else []), *names), 140)


def draw_rate(activity: list[Row], events: list[Row], stretches: list[Row]) -> Spec:
    """Draw output tokens per second over time, with engine events and the measured interval."""
    area = _draw_slices(_slices(activity), activity, "output_tokens_per_s", "output tokens per second")
    return finish(alt.layer(area, *_stretch_rules(stretches), *_event_rules(activity, events)))


def draw_in_flight(activity: list[Row], engines: list[Row], events: list[Row], stretches: list[Row]) -> Spec:
    """Draw requests in flight over time, with each engine's maximum."""
    flown = _draw_slices(_slices(activity), activity, "in_flight", "requests in flight")
    windows = [
        {
            "from": engine["work_began_at_s"],
            "until": engine["work_ended_at_s"],
            "window": engine["last_window_requests"],
            "name": f"{engine['worker']}, engine {engine['engine_generation']}",
        }
        for engine in engines
        if engine["work_began_at_s"] is not None and engine["last_window_requests"] is not None
    ]
    marks = [*_stretch_rules(stretches), *_event_rules(activity, events)]
    if not windows:
        return finish(alt.layer(flown, *marks))
    lines = (
        alt.Chart(inline(windows))
        .mark_rule(style="window", clip=True)
        .encode(
            x="from:Q",
            x2="until:Q",
            y="window:Q",
            tooltip=[alt.Tooltip("name:N", title="engine"), alt.Tooltip("window:Q", title="max in flight")],
        )
    )
    return finish(alt.layer(flown, lines, *marks))


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
    formats = {"axis_format": ".3~%", "tip_format": ".1%"} if is_share else {"axis_format": ""}
    scale = alt.Scale(domain=[0, 1]) if is_high else alt.Scale(zero=True)
    area = _draw_slices(slices, activity, "value", title, scale, **formats)
    return finish(alt.layer(area, *_event_rules(activity, events)), 110)


def draw_intervals(rows: list[Row]) -> Spec:
    """Draw mean scores with their intervals, one line each: rows have name, mean, low, high."""
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=160, ticks=False, domain=False))
    )
    bars = base.mark_rule(style="interval").encode(
        x=alt.X("low:Q", title="mean score", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5)),
        x2="high:Q",
    )
    points = base.mark_point(style="estimate").encode(
        x="mean:Q",
        tooltip=[
            alt.Tooltip("name:N", title="scorer"),
            alt.Tooltip("mean:Q", title="mean score", format=".1%"),
            alt.Tooltip("low:Q", title="low", format=".1%"),
            alt.Tooltip("high:Q", title="high", format=".1%"),
        ],
    )
    return finish(alt.layer(bars, points), 34 * len(rows) + 10)


def draw_differences(rows: list[Row]) -> Spec:
    """Draw differences of mean scores with their intervals, around a line at zero."""
    points = [{"name": row["scorer"], **{key: 100 * row[key] for key in ("difference", "low", "high")}} for row in rows]
    base = alt.Chart(inline(points)).encode(
        y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=160, ticks=False, domain=False))
    )
    spans = base.mark_rule(style="interval").encode(
        x=alt.X("low:Q", title="change in percentage points", axis=alt.Axis(tickCount=6)),
        x2="high:Q",
    )
    estimates = base.mark_point(style="estimate").encode(
        x="difference:Q",
        tooltip=[alt.Tooltip("name:N", title="scorer"), alt.Tooltip("difference:Q", title="points", format="+.1f")],
    )
    zero = alt.Chart(inline([{"at": 0}])).mark_rule(style="percentile").encode(x="at:Q")
    return finish(alt.layer(zero, spans, estimates), 34 * len(rows) + 10)


def draw_repeats(values: Mapping[str, Sequence[float]], medians: Mapping[str, float], unit: str) -> Spec:
    """Draw a dot per repeat and a line at the median, by configuration."""
    y = alt.Y("name:N", title=None, sort=list(values), axis=alt.Axis(labelLimit=130, ticks=False, domain=False))
    axis = alt.Axis(tickCount=4, format=",.6~g")
    x = alt.X("value:Q", title=unit, scale=alt.Scale(zero=False, padding=10), axis=axis)
    dots = [{"name": name, "value": value} for name, found in values.items() for value in found]
    lines = [{"name": name, "value": value} for name, value in medians.items()]
    tips = [alt.Tooltip("name:N", title="configuration"), alt.Tooltip("value:Q", title=unit, format=",.4~g")]
    layers = [alt.Chart(inline(dots)).mark_point(style="repeat").encode(x=x, y=y, tooltip=tips)]
    if lines:
        layers.append(alt.Chart(inline(lines)).mark_tick(style="median").encode(x=x, y=y, tooltip=tips))
    return finish(alt.layer(*layers), 26 * len(values) + 10)


def draw_frontier(rows: Sequence[Row], unit: str) -> Spec:
    """Draw recovery against cost with both intervals: rows of `frontier` with `name`. Dominated ones are grey.

    Names are above and below the points in turn, in the order of the costs.
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
        }
        for place, row in enumerate(sorted(rows, key=lambda row: row["cost_per_right_answer"]))
    ]
    grey = alt.condition("datum.is_grey", alt.value(0.35), alt.value(1.0))
    axis = alt.Axis(tickCount=5, format=".3~g")
    base = alt.Chart(inline(points)).encode(
        x=alt.X("cost:Q", title=unit.replace("/", " per "), scale=alt.Scale(zero=False, padding=30), axis=axis),
        y=alt.Y("recovery:Q", title="recovery (%)", scale=alt.Scale(zero=False, padding=12), axis=axis),
        opacity=grey,
        tooltip=[
            alt.Tooltip("name:N", title="configuration"),
            alt.Tooltip("recovery:Q", title="recovery (%)", format=".4~g"),
            alt.Tooltip("cost:Q", title=unit, format=".3~g"),
        ],
    )
    heights = base.mark_rule(style="interval").encode(y="recovery_low:Q", y2="recovery_high:Q")
    widths = base.mark_rule(style="interval").encode(x="cost_low:Q", x2="cost_high:Q")
    costs = [row["cost_per_right_answer"] for row in rows]
    middle = (min(costs) + max(costs)) / 2
    is_left = f"datum.cost <= {middle}"
    names = base.mark_text(
        style="percentile-name",
        align=alt.expr(f"{is_left} ? 'left' : 'right'"),
        dx=alt.expr(f"{is_left} ? 7 : -7"),
        dy=alt.expr("datum.is_below ? 11 : -9"),
    ).encode(text="name:N")
    return finish(alt.layer(heights, widths, base.mark_point(style="estimate"), names), 260)


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


def _draw_slices(
    slices: list[Row],
    activity: list[Row],
    column: str,
    title: str,
    scale: Any = alt.Undefined,
    axis_format: Any = alt.Undefined,
    tip_format: str = ",.4~g",
) -> alt.Chart:
    """Draw a bar per slice of time, on the axis of `activity`."""
    axis = alt.Axis(tickCount=4, minExtent=AXIS_ROOM, format=axis_format)
    tips = [
        alt.Tooltip("from:Q", title="from second", format=".4~g"),
        alt.Tooltip(f"{column}:Q", title=title, format=tip_format),
    ]
    bars = alt.Chart(inline(slices)).mark_bar(style="quantity")
    y = alt.Y(f"{column}:Q", title=title, scale=scale, axis=axis)
    drawn: alt.Chart = bars.encode(x=_time_axis(activity), x2="until:Q", y=y, tooltip=tips)
    return drawn


def _time_axis(activity: list[Row]) -> alt.X:
    domain = [activity[0]["begins_at_s"], activity[-1]["ends_at_s"]]
    return alt.X(
        "from:Q",
        bin="binned",
        title="seconds since the run's start",
        scale=alt.Scale(domain=domain, nice=False),
        axis=alt.Axis(tickCount=6),
    )


def _stretch_rules(stretches: list[Row]) -> list[alt.Chart]:
    """Draw lines at the start and end of each measured interval of a load."""
    ends = [
        {"at": row[column], "what": what}
        for row in stretches
        for column, what in (("begins_at_s", "measured interval starts"), ("ends_at_s", "measured interval ends"))
    ]
    if not ends:
        return []
    tips = [alt.Tooltip("what:N", title="load"), alt.Tooltip("at:Q", title="time (s)", format=".4~g")]
    return [alt.Chart(inline(ends)).mark_rule(style="percentile").encode(x="at:Q", tooltip=tips)]


def _event_rules(activity: list[Row], events: list[Row]) -> list[alt.Chart]:
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
    rules = (
        alt.Chart(inline(shown))
        .mark_rule(style="event")
        .encode(
            x="at:Q",
            tooltip=[
                alt.Tooltip("event:N", title="engine"),
                alt.Tooltip("at:Q", title="time (s)", format=".4~g"),
                alt.Tooltip("what:N", title="message"),
            ],
        )
    )
    names = [(row["at"], (row["at"] - begin) / ((end - begin) or 1), str(row["event"])) for row in shown]
    return [rules, *name_marks(names, "event-name")]


def name_marks(
    marks: Sequence[tuple[Any, float, str]], style: str = "percentile-name", x: str = "at:Q"
) -> list[alt.Chart]:
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
                    alt.Chart(inline([{"at": at, "name": name}]))
                    .mark_text(
                        style=style,
                        align="right" if place > 0.5 else "left",
                        dx=-3 if place > 0.5 else 3,
                        baseline="bottom",
                    )
                    .encode(x=x, y=alt.value(-2 - line * LINE_PIXELS), text="name:N")
                )
                break
    return layers


def choose_unit(seconds: list[float]) -> tuple[str, float]:
    """Return the unit that suits the largest value, and the factor from seconds to it."""
    largest = max(seconds, default=0.0)
    return ("seconds", 1.0) if largest >= 1 else ("milliseconds", 1e3) if largest >= 1e-3 else ("microseconds", 1e6)


def inline(rows: list[Row]) -> alt.InlineData:
    return alt.InlineData(values=rows)


def finish(chart: alt.TopLevelMixin, height: int = HEIGHT) -> Spec:
    """Return the specification, scaled to the width of the page."""
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    spec.pop("config", None)  # the page supplies it, for light and dark mode
    return spec
