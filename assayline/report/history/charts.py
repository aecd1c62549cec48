"""A metric over time: nights with their intervals, the baseline's band, levels, and marks where conditions changed."""

from collections.abc import Sequence
from datetime import datetime

import altair as alt

from assayline.report.charts import AXIS_ROOM, Spec, choose_unit, finish, inline
from assayline.report.history.rows import LevelShift, Metric
from assayline.store.database import Row

HEIGHT = 190
MOST_NAMES = 6
"""Names of changes above a chart: more would lie on each other."""


def draw_metric(
    metric: Metric,
    rows: Sequence[Row],
    runs: Sequence[Row],
    shifts: Sequence[LevelShift],
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
    first, last = show_moment(runs[0]["started_at"]), show_moment(runs[-1]["started_at"])
    axis = alt.X(
        "at:T", title=None, scale=alt.Scale(type="utc", padding=12), axis=alt.Axis(tickCount=6, format="%d %b")
    )
    base = alt.Chart(inline(points)).encode(
        x=axis,
        y=alt.Y(
            "value:Q",
            title=unit,
            scale=alt.Scale(zero=False, padding=8),
            axis=alt.Axis(tickCount=4, minExtent=AXIS_ROOM),
        ),
    )
    tips = [
        alt.Tooltip("run:N", title="run"),
        alt.Tooltip("at:T", title="started, UTC", format="%Y-%m-%d %H:%M"),
        alt.Tooltip("shown:N", title=metric.title),
    ]
    layers = [
        *_draw_band(band, factor, first, last),
        *_draw_changes(changes),
        base.transform_filter("datum.low !== null")
        .mark_rule(style="night-interval")
        .encode(y=alt.Y("low:Q", title=unit), y2="high:Q"),
        base.transform_filter("datum.is_counted").mark_point(style="night").encode(tooltip=tips),
        base.transform_filter("!datum.is_counted").mark_point(style="night-uncounted").encode(tooltip=tips),
        base.transform_filter("datum.is_broken").mark_point(style="flag"),
        *_draw_levels(shifts, factor, first, last),
    ]
    return finish(alt.layer(*layers), HEIGHT)


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


def _draw_levels(shifts: Sequence[LevelShift], factor: float, first: str, last: str) -> list[alt.Chart]:
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


def _draw_changes(changes: Sequence[Row]) -> list[alt.Chart]:
    """A line per run in which conditions changed, with their names at the top."""
    together: dict[str, list[Row]] = {}
    for change in changes:
        together.setdefault(show_moment(change["started_at"]), []).append(change)
    if not together:
        return []
    shown = [
        {
            "at": at,
            "name": ", ".join(row["condition"] for row in rows),
            "what": "; ".join(f"{row['condition']}: {row['words']}" for row in rows)[:300],
        }
        for at, rows in together.items()
    ]
    tips = [alt.Tooltip("at:T", title="since", format="%Y-%m-%d %H:%M"), alt.Tooltip("what:N", title="changed")]
    return [
        alt.Chart(inline(shown)).mark_rule(style="percentile").encode(x="at:T", tooltip=tips),
        alt.Chart(inline(shown[-MOST_NAMES:]))
        .mark_text(style="percentile-name", align="center", baseline="bottom")
        .encode(x="at:T", y=alt.value(-2), text="name:N"),
    ]
