"""A metric over time: nights with their intervals, the baseline's band, levels, and marks where conditions changed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import altair as alt

from assayline.report.charts import AXIS_ROOM, Spec, choose_unit, finish, inline, name_marks

if TYPE_CHECKING:
    from assayline.report.history import LevelShift, Metric
from assayline.store.database import Row

HEIGHT = 190


def draw_metric(
    metric: "Metric",
    rows: Sequence[Row],
    runs: Sequence[Row],
    shifts: "Sequence[LevelShift]",
    band: Row | None,
    changes: Sequence[Row],
) -> Spec:
    """`rows` are the metric's of show_history, `runs` all of the history, whose ends are those of the axis."""
    unit, factor = (metric.axis, metric.shown_as) if metric.axis else choose_unit([row["value"] for row in rows])
    broken = {
        run["run_id"] for run in runs if any(limit.startswith(metric.key) for limit in run["broken_limits"] or ())
    }
    points = [
        {
            "at": show_moment(row["started_at"]),
            "night": f"{row['started_at']:%Y-%m-%d %H:%M}",
            "value": row["value"] * factor,
            "low": None if row["low"] is None else row["low"] * factor,
            "high": None if row["high"] is None else row["high"] * factor,
            "run": row["run_id"],
            "shown": metric.show(row["value"]),
            "is_broken": row["run_id"] in broken,
            "is_counted": row["is_counted"],
        }
        for row in rows
    ]
    begin, end = runs[0]["started_at"], runs[-1]["started_at"]
    first, last = show_moment(begin), show_moment(end)
    axis = alt.Axis(tickCount=6, format=_choose_format(begin, end), labelOverlap=True)
    x = alt.X("at:T", title=None, scale=alt.Scale(type="utc", padding=12), axis=axis)
    y = alt.Y(
        "value:Q", title=unit, scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=4, minExtent=AXIS_ROOM)
    )

    def draw(rows: list[Row]) -> alt.Chart:
        return alt.Chart(inline(rows)).encode(x=x, y=y)

    tips = [
        alt.Tooltip("run:N", title="run"),
        alt.Tooltip("night:N", title="started, UTC"),
        alt.Tooltip("shown:N", title=metric.title),
    ]
    layers = [*_draw_band(band, factor, first, last), *_draw_changes(changes, begin, end)]
    if sure := [point for point in points if point["low"] is not None]:
        layers.append(draw(sure).mark_rule(style="night-interval").encode(y=alt.Y("low:Q", title=unit), y2="high:Q"))
    for is_counted, style in ((True, "night"), (False, "night-uncounted")):
        if shown := [point for point in points if point["is_counted"] == is_counted]:
            layers.append(draw(shown).mark_point(style=style).encode(tooltip=tips))
    if flagged := [point for point in points if point["is_broken"]]:
        layers.append(draw(flagged).mark_point(style="flag"))
    return finish(alt.layer(*layers, *_draw_levels(shifts, factor, first, last)), HEIGHT)


def _choose_format(begin: datetime, end: datetime) -> str:
    """Of the axis of time: hours where days alone would repeat themselves."""
    if begin.date() == end.date():
        return "%H:%M"
    return "%d %b %H:%M" if end - begin < timedelta(days=6) else "%d %b"


def show_moment(moment: datetime) -> str:
    """UTC wall clock as a chart reads it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def _draw_band(band: Row | None, factor: float, first: str, last: str) -> list[alt.Chart]:
    """The baseline's level as a line, and its interval or range behind everything."""
    if band is None:
        return []
    level = {"at": first, "until": last, "value": band["value"] * factor}
    line = alt.Chart(inline([level])).mark_rule(style="window").encode(x="at:T", x2="until:T", y="value:Q")
    if band["low"] is None or band["high"] is None:
        return [line]
    span = {"at": first, "until": last, "low": band["low"] * factor, "high": band["high"] * factor}
    area = alt.Chart(inline([span])).mark_rect(style="band").encode(x="at:T", x2="until:T", y="low:Q", y2="high:Q")
    return [area, line]


def _draw_levels(shifts: "Sequence[LevelShift]", factor: float, first: str, last: str) -> list[alt.Chart]:
    """The medians before and after each shift, as lines from night to night."""
    if not shifts:
        return []
    begins = [show_moment(one.run["started_at"]) for one in shifts]
    levels = [{"at": first, "until": begins[0], "value": shifts[0].shift.before * factor}]
    levels += [
        {"at": begin, "until": until, "value": one.shift.after * factor}
        for one, begin, until in zip(shifts, begins, [*begins[1:], last], strict=True)
    ]
    steps = [{"at": begin} for begin in begins]
    return [
        alt.Chart(inline(levels)).mark_rule(style="level").encode(x="at:T", x2="until:T", y="value:Q"),
        alt.Chart(inline(steps)).mark_rule(style="event").encode(x="at:T"),
    ]


def _draw_changes(changes: Sequence[Row], begin: datetime, end: datetime) -> list[alt.Chart]:
    """A line per run in which conditions changed, with their names at the top."""
    together: dict[datetime, list[Row]] = {}
    for change in changes:
        together.setdefault(change["started_at"], []).append(change)
    if not together:
        return []
    shown = [
        {
            "at": show_moment(at),
            "night": f"{at:%Y-%m-%d %H:%M}",
            "what": "; ".join(f"{row['condition']}: {row['words']}" for row in rows)[:300],
        }
        for at, rows in together.items()
    ]
    tips = [alt.Tooltip("night:N", title="since, UTC"), alt.Tooltip("what:N", title="changed")]
    whole = (end - begin) or timedelta(days=1)
    names = [
        (show_moment(at), (at - begin) / whole, ", ".join(row["condition"] for row in rows))
        for at, rows in together.items()
    ]
    return [
        alt.Chart(inline(shown)).mark_rule(style="percentile").encode(x="at:T", tooltip=tips),
        *name_marks(names, x="at:T"),
    ]
