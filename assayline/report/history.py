"""The history page: accuracy, speed, latency and cost over nightly runs, with level shifts.

A level shift is listed with the conditions that changed between the last counted run before it and its first run. The
page does not infer causation.
"""

from collections.abc import Sequence
from datetime import datetime

from assayline.comparison.levels import FEWEST_NIGHTS, SHORTEST_NIGHTS, is_tellable
from assayline.report.charts import Spec, choose_unit, draw_nights
from assayline.report.document import Chart, Column, Document, Figure, Section, Table, tabulate
from assayline.report.history_rows import FALSE_ALARMS, HistoryRows, LevelShift, Metric, list_counted
from assayline.store.database import Row
from assayline.store.manifest import ENDED_WELL
from assayline.words import DASH, count, name_metric, show_name, show_note, show_number, show_range, show_share

MOST_SENTENCES = 4


def write_headline(rows: HistoryRows) -> list[str]:
    """Return the headline sentences, most important first."""
    lasting = sorted((one for one in rows.shifts if one.until is None), key=lambda one: not one.is_worse)
    over = [one for one in rows.shifts if one.until is not None]
    has_failed = rows.newest["verdict"] == "fail"
    sentences = [_say_newest(rows)] if has_failed else []
    sentences += [say_shift(one, rows) for one in lasting[:MOST_SENTENCES]]
    if len(lasting) > MOST_SENTENCES:
        sentences.append(
            f"{count(len(lasting) - MOST_SENTENCES, 'more level shift is', 'more level shifts are')} listed below."
        )
    if over:
        sentences.append(
            f"{count(len(over), 'earlier level shift has', 'earlier level shifts have')} ended and "
            f"{'is' if len(over) == 1 else 'are'} listed below."
        )
    if not rows.shifts:
        sentences.append(say_no_shift(rows))
    sentences.append(_say_verdicts(rows))
    if rows.obstacle:
        sentences.append(f"No baseline is shown. {rows.obstacle}")
    if rows.others:
        sentences.append(
            f"Other runs with this name are not shown: {', '.join(rows.others[:3])}. Pass the id of one of them "
            "instead of the name to see its history."
        )
    return [sentence for sentence in sentences if sentence]


def say_shift(one: LevelShift, rows: HistoryRows) -> str:
    """Describe a level shift: when, by how much, and the conditions that changed then."""
    shift, metric = one.shift, one.metric
    interval = show_interval(one)
    told = f" (95% interval {interval})" if interval else ""
    return (
        f"{metric.title} has been {'worse' if one.is_worse else 'better'} since {show_night(one.run)}, by a "
        f"level shift or slow drift: "
        f"{metric.show(shift.before)} before, {metric.show(shift.after)} after, "
        f"{metric.show_shift(shift.change, shift.before)}{told}.{_say_cause(one, rows)}"
    )


def _say_cause(one: LevelShift, rows: HistoryRows) -> str:
    """List the conditions that changed between the last counted run before the shift and its first run."""
    counted = list_counted(rows.values[one.metric.key])
    last = max(row["position"] for row in counted if row["position"] < one.run["position"])
    changed = [row for row in rows.changes if last < row["position"] <= one.run["position"]]
    if not changed:
        return " No recorded condition changed then."
    named = "; ".join(f"{row['condition']} ({row['words']})" for row in changed)
    return f" Changed since the previous run: {named}."


ENOUGH_NIGHTS = 30
"""Runs from which a lasting shift of three standard deviations is usually found."""


def say_no_shift(rows: HistoryRows) -> str:
    """Explain why no shift is shown."""
    counted = [[row["value"] for row in list_counted(values)] for values in rows.values.values()]
    nights = max(map(len, counted), default=0)
    if len(rows.runs) == 1:
        return "This is the first run; a history starts with the second."
    if nights < FEWEST_NIGHTS:
        return (
            f"{count(nights, 'counted run')} cannot distinguish a level shift from chance; at least {FEWEST_NIGHTS} "
            "are needed."
        )
    if not is_tellable(counted):
        return (
            f"No level shift can be told in {count(nights, 'run')}: the nights depend on those before, so a slow drift "
            "looks like a shift."
        )
    if nights < ENOUGH_NIGHTS:
        return (
            f"No level has shifted by more than chance in {count(nights, 'run')}; below {ENOUGH_NIGHTS}, most shifts "
            "cannot be told yet."
        )
    return f"No level has shifted by more than chance in {count(nights, 'run')}."


def _say_verdicts(rows: HistoryRows) -> str:
    judged = [run for run in rows.runs if run["verdict"]]
    failed = [run for run in judged if run["verdict"] == "fail"]
    if not judged:
        return "No gate has judged any of these runs."
    last = "" if rows.newest["verdict"] == "fail" else f" {_say_newest(rows)}"
    return f"{len(failed)} of {count(len(judged), 'run')} judged by a gate failed a limit.{last}"


def _say_newest(rows: HistoryRows) -> str:
    state = rows.newest["state"]
    verdict = {
        "fail": f"failed its limits: {rows.newest['verdict_words']}",
        "suspect": f"failed no limit, but one comparison alone would fail: {rows.newest['verdict_words']}",
        "inconclusive": "failed no limit, but at least one was inconclusive.",
        "pass": "was within its limits.",
        None: f"was not judged{'' if state in ENDED_WELL else ': it is ' + state}.",
    }[rows.newest["verdict"]]
    return f"The latest run, {show_night(rows.newest)}, {verdict}"


def show_night(run: Row) -> str:
    """Format a run as its start time."""
    return f"{run['started_at']:%Y-%m-%d %H:%M}"


def show_interval(one: LevelShift) -> str:
    """Format the 95% interval of the change; empty without one."""
    shift, metric = one.shift, one.metric
    return show_range(*(metric.show_shift(end, shift.before) for end in (shift.low, shift.high)))


FOLDED_FROM = 40
"""Number of runs above which the table of all runs is folded."""

SHIFTS = (
    Column("metric", lambda one: one.metric.title),
    Column("since (UTC)", lambda one: show_night(one.run), show_name),
    Column("run", lambda one: one.run["run_id"], show_name),
    Column("before", lambda one: one.metric.show(one.shift.before), show_number),
    Column("after", lambda one: one.metric.show(one.shift.after), show_number),
    Column("change", lambda one: one.metric.show_shift(one.shift.change, one.shift.before), show_number),
    Column("95% CI", show_interval, show_number),
    Column("until", lambda one: show_night(one.until) if one.until else "now", show_name),
    Column("p", lambda one: f"{one.shift.p_value:.2g}", show_number),
    Column("direction", lambda one: "worse" if one.is_worse else "better"),
)
CHANGES = (
    Column("since (UTC)", show_night, show_name),
    Column("run", "run_id", show_name),
    Column("condition", "condition"),
    Column("from → to", "words"),
)
BAND = (
    Column("metric", lambda pair: pair[0].title),
    Column("baseline", lambda pair: pair[0].show(pair[1]["value"]), show_number),
    Column(
        "interval or range",
        lambda pair: show_range(*(pair[0].show(pair[1][end]) for end in ("low", "high"))),
        show_number,
    ),
    Column("runs", lambda pair: f"{pair[1]['repeats']}", show_number),
)


def compose_history(rows: HistoryRows) -> Document:
    """Build the history document."""
    run = rows.newest
    return Document(
        title=f"{run['name']} over time",
        subtitle=f"{run['model']} on {run['prompt_set']}, {_say_span(rows.runs)}",
        state="history",
        headline=write_headline(rows),
        figures=_choose_figures(rows),
        sections=[
            _draw_all(rows),
            _list_shifts(rows),
            _list_changes(rows),
            _describe_baseline(rows),
            Section("runs", "Runs", [tabulate_nights(rows)]),
        ],
    )


def _say_span(runs: Sequence[Row]) -> str:
    return f"{count(len(runs), 'run')}, {runs[0]['started_at']:%Y-%m-%d} to {runs[-1]['started_at']:%Y-%m-%d}"


def _choose_figures(rows: HistoryRows) -> list[Figure]:
    """Return the latest value of each metric, with its baseline."""
    worse = {one.metric.key for one in rows.shifts if one.is_worse and one.until is None}
    figures = []
    for metric in rows.metrics:
        values = list_counted(rows.values.get(metric.key, []))
        if not values:
            continue
        band = rows.band.get(metric.key)
        detail = f"baseline {metric.show(band['value'])}" if band else f"on {values[-1]['started_at']:%Y-%m-%d}"
        figures.append(Figure(metric.title, metric.show(values[-1]["value"]), detail, metric.key in worse))
    judged = [run for run in rows.runs if run["verdict"]]
    if judged:
        failed = sum(run["verdict"] == "fail" for run in judged)
        figures.append(Figure("Gate failed", f"{failed} of {len(judged)}", "runs judged by a gate", failed > 0))
    return figures


def _draw_all(rows: HistoryRows) -> Section:
    """Draw a chart per metric, all over the same dates."""
    section = Section("time", "Over time")
    drawn = [metric for metric in rows.metrics if rows.values.get(metric.key)]
    if not drawn:
        section.say("No run has a value of any metric on this page.")
        return section
    parts = ["Each dot is a run, with the 95% interval over its own requests if there is one"]
    if rows.band:
        parts.append("the band is the baseline's interval, or the range of its repeats")
    if rows.changes:
        parts.append("dashed lines mark changed conditions")
    parts.append("a ring marks a failed limit on this metric, a pale dot a run that does not count")
    if rows.shifts:
        parts.append("lines through the dots are the detected levels")
    section.say(f"{'; '.join(parts)}.")
    for metric in drawn:
        values = rows.values[metric.key]
        shifts = [one for one in rows.shifts if one.metric is metric]
        section.add(
            Chart(
                metric.title,
                _describe_chart(metric, values, shifts),
                _draw_metric(metric, rows, shifts),
            )
        )
    return section


def _describe_chart(metric: Metric, values: Sequence[Row], shifts: Sequence[LevelShift]) -> str:
    shown = [row["value"] for row in list_counted(values)] or [row["value"] for row in values]
    told = "; ".join(
        f"from {metric.show(one.shift.before)} to {metric.show(one.shift.after)} on {show_night(one.run)}"
        for one in shifts
    )
    last = f"{metric.show(values[-1]['value'])} on {show_night(values[-1])}"
    return f"Between {metric.show(min(shown))} and {metric.show(max(shown))}, {last}." + (
        f" Shifted {told}." if told else ""
    )


def _draw_metric(metric: Metric, rows: HistoryRows, shifts: Sequence[LevelShift]) -> Spec:
    values = rows.values[metric.key]
    unit, factor = (metric.axis, metric.shown_as) if metric.axis else choose_unit([row["value"] for row in values])
    failed = {
        run["run_id"] for run in rows.runs if any(limit.startswith(metric.key) for limit in run["failed_limits"] or ())
    }

    def scale(row: Row) -> Row:
        return {key: None if row[key] is None else row[key] * factor for key in ("value", "low", "high")}

    points = [
        {
            "started_at": row["started_at"],
            **scale(row),
            "run": row["run_id"],
            "shown": metric.show(row["value"]),
            "has_failed": row["run_id"] in failed,
            "is_counted": row["is_counted"],
        }
        for row in values
    ]
    levels = [(rows.runs[0]["started_at"], shifts[0].shift.before)] if shifts else []
    levels += [(one.run["started_at"], one.shift.after) for one in shifts]
    together: dict[datetime, list[Row]] = {}
    for change in rows.changes:
        together.setdefault(change["started_at"], []).append(change)
    marks = {
        at: (
            ", ".join(row["condition"] for row in changed),
            "; ".join(f"{row['condition']}: {row['words']}" for row in changed),
        )
        for at, changed in together.items()
    }
    return draw_nights(
        points,
        unit,
        span=(rows.runs[0]["started_at"], rows.newest["started_at"]),
        band=scale(rows.band[metric.key]) if metric.key in rows.band else None,
        levels=[(at, level * factor) for at, level in levels],
        marks=marks,
    )


def _list_shifts(rows: HistoryRows) -> Section:
    section = Section("shifts", "Level shifts")
    if rows.shifts:
        section.add(tabulate("Level shifts beyond chance", SHIFTS, rows.shifts))
    else:
        section.say(say_no_shift(rows))
    section.say(
        "A level shift (change point) is reported if the largest difference of means over all splits of the "
        "history is larger than in nearly all of its reorderings, which preserve the correlation between "
        f"neighboring runs. Each side has at least {SHORTEST_NIGHTS} runs, so a single outlier is not a shift. If "
        f"nothing shifts, at most {show_share(FALSE_ALARMS)} of pages are expected to show a shift, over all "
        "metrics together (see docs/concepts/statistics.md for measured rates)."
    )
    return section


def _list_changes(rows: HistoryRows) -> Section:
    section = Section("changes", "Changed conditions")
    if rows.changes:
        section.add(tabulate("Changed conditions, by first run", CHANGES, rows.changes))
    else:
        section.say("Model, prompts, settings, vLLM, torch, driver, device, machine and assayline did not change.")
    return section


def _describe_baseline(rows: HistoryRows) -> Section:
    section = Section("baseline", "Baseline")
    if rows.baseline_run is None:
        section.say(
            rows.obstacle
            or "No baseline is set. To set one, pin a run with `assayline baseline pin NAME RUN_ID`, and set "
            "gate.baseline in the spec to its name."
        )
        return section
    section.say(
        f"{rows.baseline}: run {rows.baseline_run['run_id']} of {show_night(rows.baseline_run)}. For accuracy, the "
        "table shows its own value with the 95% interval; for speed, the median and range of its repeats."
    )
    pairs = [(metric, rows.band[metric.key]) for metric in rows.metrics if metric.key in rows.band]
    section.add(tabulate("Baseline levels", BAND, pairs))
    return section


def _show_verdict(run: Row) -> str:
    """Format the gate's verdict and the failed limits."""
    return ": ".join([run["verdict"] or DASH, *filter(None, [", ".join(map(name_metric, run["failed_limits"] or ()))])])


def tabulate_nights(rows: HistoryRows) -> Table:
    """Tabulate the runs, newest first."""
    shown = list(reversed(rows.runs))
    metrics = [metric for metric in rows.metrics if rows.values.get(metric.key)]
    values = {(row["metric"], row["run_id"]): row["value"] for of in rows.values.values() for row in of}
    changed: dict[str, list[str]] = {}
    for row in rows.changes:
        changed.setdefault(row["run_id"], []).append(row["condition"])
    begun: dict[str, list[str]] = {}
    for one in rows.shifts:
        begun.setdefault(one.run["run_id"], []).append(one.metric.title)

    def show_metric(metric: Metric) -> Column:
        return Column(metric.title, lambda run: metric.show(values.get((metric.key, run["run_id"]))), show_number)

    def say_note(run: Row) -> str:
        notes = [run["obstacle"]] if run["obstacle"] else []
        notes += [f"changed: {', '.join(changed[run['run_id']])}"] if run["run_id"] in changed else []
        notes += [f"new level: {', '.join(begun[run['run_id']])}"] if run["run_id"] in begun else []
        return "; ".join(notes)

    columns = [
        Column("started (UTC)", show_night, show_name),
        Column("run", "run_id", show_name),
        Column("gate", _show_verdict),
        *map(show_metric, metrics),
        Column("note", say_note, show_note),
    ]
    return tabulate("All runs, newest first", columns, shown, is_folded=len(shown) > FOLDED_FROM)
