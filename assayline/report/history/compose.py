"""The page of a history: what became of accuracy, speed, latency and cost over the nights, and since when."""

from collections.abc import Sequence

from assayline.comparison.levels import SHORTEST_NIGHTS
from assayline.report.document import Chart, Document, Figure, Paragraph, Section
from assayline.report.history.charts import draw_metric
from assayline.report.history.headline import say_no_shift, show_interval, show_night, write_headline
from assayline.report.history.rows import FALSE_ALARMS, HistoryRows, LevelShift, Metric, list_counted
from assayline.report.table import Column, Table, tabulate
from assayline.store.database import Row
from assayline.words import DASH, count, show_name, show_note, show_number, show_range, show_share

FOLDED_FROM = 40
"""Nights from which on the table of all of them is folded."""

SHIFTS = (
    Column("metric", lambda one: one.metric.title),
    Column("since, UTC", lambda one: show_night(one.run), show_name),
    Column("run", lambda one: one.run["run_id"], show_name),
    Column("before", lambda one: one.metric.show(one.shift.before), show_number),
    Column("after", lambda one: one.metric.show(one.shift.after), show_number),
    Column("change", lambda one: one.metric.show_shift(one.shift.change, one.shift.before), show_number),
    Column("95 % interval", show_interval, show_number),
    Column("until", lambda one: show_night(one.until) if one.until else "now", show_name),
    Column("p", lambda one: f"{one.shift.p_value:.2g}", show_number),
    Column("", lambda one: "worse" if one.is_worse else "better"),
)
CHANGES = (
    Column("since, UTC", show_night, show_name),
    Column("run", "run_id", show_name),
    Column("what", "condition"),
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
    """The page before it has a form."""
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
            _list_nights(rows),
        ],
    )


def _say_span(runs: Sequence[Row]) -> str:
    return f"{count(len(runs), 'run')}, {runs[0]['started_at']:%Y-%m-%d} to {runs[-1]['started_at']:%Y-%m-%d}"


def _choose_figures(rows: HistoryRows) -> list[Figure]:
    """The newest value of each metric, beside its baseline."""
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
        broken = sum(run["verdict"] == "broken" for run in judged)
        figures.append(Figure("Limits broken", f"{broken} of {len(judged)}", "runs that a gate judged", broken > 0))
    return figures


def _draw_all(rows: HistoryRows) -> Section:
    """A chart per metric, all over the same days."""
    section = Section("time", "Over time")
    drawn = [metric for metric in rows.metrics if rows.values.get(metric.key)]
    if not drawn:
        section.blocks.append(Paragraph("No run has a value of any of the metrics that are shown here."))
        return section
    parts = ["Each dot is a run, with the 95 % interval of its own requests where there is one"]
    if rows.band:
        parts.append("the band is the baseline's interval, or the range of its repeats")
    if rows.changes:
        parts.append("dashed lines are where conditions changed")
    parts.append("a ring is a broken limit on this metric, a pale dot a run that does not count")
    if rows.shifts:
        parts.append("lines through the dots are the levels that were found")
    section.blocks.append(Paragraph(f"{'; '.join(parts)}."))
    for metric in drawn:
        values = rows.values[metric.key]
        shifts = [one for one in rows.shifts if one.metric is metric]
        section.blocks.append(
            Chart(
                metric.title,
                _describe_chart(metric, values, shifts),
                draw_metric(metric, values, rows.runs, shifts, rows.band.get(metric.key), rows.changes),
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


def _list_shifts(rows: HistoryRows) -> Section:
    section = Section("shifts", "Level shifts")
    if rows.shifts:
        section.blocks.append(tabulate("Levels that changed by more than chance", SHIFTS, rows.shifts))
    else:
        section.blocks.append(Paragraph(say_no_shift(rows)))
    section.blocks.append(
        Paragraph(
            "A shift is called where the largest difference of means over all splits of the history is larger than "
            "in all but a few of its own reorderings, which keep the correlation of neighbouring runs. Either side "
            f"has at least {SHORTEST_NIGHTS} runs, so a single odd night is none. Of histories in which nothing "
            f"shifts, at most {show_share(FALSE_ALARMS)} of the pages are to show a shift, all metrics together "
            "(docs/history.md has the rates that were measured)."
        )
    )
    return section


def _list_changes(rows: HistoryRows) -> Section:
    section = Section("changes", "Changed conditions")
    if not rows.changes:
        section.blocks.append(
            Paragraph(
                "Model, prompts, settings, vLLM, torch, driver, device, machine and assayline stayed as they were."
            )
        )
        return section
    section.blocks.append(tabulate("What changed, and since which run", CHANGES, rows.changes))
    return section


def _describe_baseline(rows: HistoryRows) -> Section:
    section = Section("baseline", "Baseline")
    if rows.baseline_run is None:
        section.blocks.append(
            Paragraph(
                rows.obstacle
                or "No baseline is named. `assayline baseline pin NAME RUN_ID` pins a run, and gate.baseline in the "
                "spec names it."
            )
        )
        return section
    section.blocks.append(
        Paragraph(
            f"{rows.baseline}: run {rows.baseline_run['run_id']} of {show_night(rows.baseline_run)}. Of accuracy, its "
            "own value with the 95 % interval; of speeds, median and range of its repeats."
        )
    )
    pairs = [(metric, rows.band[metric.key]) for metric in rows.metrics if metric.key in rows.band]
    section.blocks.append(tabulate("The baseline's level", BAND, pairs))
    return section


def _list_nights(rows: HistoryRows) -> Section:
    section = Section("runs", "Runs")
    section.blocks.append(tabulate_nights(rows))
    return section


def _show_verdict(run: Row) -> str:
    """What the gate said, and which limits are broken."""
    return ": ".join([run["verdict"] or DASH, *filter(None, [", ".join(run["broken_limits"] or ())])])


def tabulate_nights(rows: HistoryRows, newest: int | None = None) -> Table:
    """Every run, the newest first, or so many of them."""
    shown = list(reversed(rows.runs))[:newest]
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
        Column("started, UTC", show_night, show_name),
        Column("run", "run_id", show_name),
        Column("gate", _show_verdict),
        *map(show_metric, metrics),
        Column("note", say_note, show_note),
    ]
    return tabulate(
        "Every run, the newest first", columns, shown, is_folded=newest is None and len(shown) > FOLDED_FROM
    )
