"""The history page: accuracy, speed, latency and cost over nightly runs, with level shifts.

A level shift is listed with the conditions that changed between the last counted run before it and its first run. The
page does not infer causation.
"""

from functools import partial
from itertools import groupby
from operator import itemgetter

from assayline.comparison.levels import FEWEST_NIGHTS, SHORTEST_NIGHTS, is_tellable
from assayline.report.charts import choose_axis, draw_nights
from assayline.report.document import (
    Chart,
    Column,
    Document,
    Figure,
    Section,
    Table,
    make_section,
    name_folder,
    tabulate,
)
from assayline.report.history_rows import FALSE_ALARMS, METRICS, HistoryRows, LevelShift, list_counted
from assayline.report.measures import head, make_figure, show_interval, valued
from assayline.store.database import Row
from assayline.store.manifest import ENDED_WELL
from assayline.words import DASH, count, name_metric, show_metric, show_name, show_note, show_number, show_share

MOST_SENTENCES = 4
ENOUGH_NIGHTS = 30
"""Runs from which a lasting shift of three standard deviations is usually found."""
FOLDED_FROM = 40
"""Number of runs above which the table of all runs is folded."""


def write_headline(rows: HistoryRows) -> list[str]:
    """Return the headline sentences, most important first."""
    lasting = sorted((one for one in rows.shifts if one.until is None), key=lambda one: not one.is_worse)
    more, over = len(lasting) - MOST_SENTENCES, len(rows.shifts) - len(lasting)
    ended = count(over, "earlier level shift has ended and is", "earlier level shifts have ended and are")
    return [
        *([_say_newest(rows), rows.newest["verdict_words"]] if rows.newest["verdict"] == "fail" else []),
        *(say_shift(one, rows) for one in lasting[:MOST_SENTENCES]),
        f"{count(more, 'more level shift is', 'more level shifts are')} listed below." if more > 0 else "",
        f"{ended} listed below." if over else "",
        "" if rows.shifts else say_no_shift(rows),
        _say_verdicts(rows),
        f"No baseline is shown. {rows.obstacle}" if rows.obstacle else "",
        f"Other runs with this name are not shown: {', '.join(rows.others[:3])}. Pass the id of one of them instead of "
        "the name to see its history."
        if rows.others
        else "",
    ]


def say_shift(one: LevelShift, rows: HistoryRows) -> str:
    """Describe a level shift: when, by how much, and the conditions that changed then."""
    told = f" (95% interval {one.interval})" if one.interval else ""
    return (
        f"{one.title} has been {'worse' if one.is_worse else 'better'} since {show_night(one.run)}, by a level shift "
        f"or slow drift: {one.show(one.shift.before)} before, {one.show(one.shift.after)} after, "
        f"{one.show_change(one.shift.change)}{told}.{_say_cause(one, rows)}"
    )


def _say_cause(one: LevelShift, rows: HistoryRows) -> str:
    """List the conditions that changed between the last counted run before the shift and its first run."""
    counted = list_counted(rows.values[one.metric])
    last = max(row["position"] for row in counted if row["position"] < one.run["position"])
    changed = [row for row in rows.changes if last < row["position"] <= one.run["position"]]
    if not changed:
        return " No recorded condition changed then."
    named = "; ".join(f"{row['condition']} ({row['words']})" for row in changed)
    return f" Changed since the previous run: {named}."


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
    judged = [run["verdict"] for run in rows.runs if run["verdict"]]
    if not judged:
        return "No gate has judged any of these runs."
    last = "" if rows.newest["verdict"] == "fail" else f" {_say_newest(rows)}"
    return f"{judged.count('fail')} of {count(len(judged), 'run')} judged by a gate failed a limit.{last}"


def _say_newest(rows: HistoryRows) -> str:
    state = rows.newest["state"]
    verdict = {
        "fail": f"failed its limits: {', '.join(map(name_metric, rows.newest['failed_limits'] or ()))}.",
        "suspect": f"failed no limit, but one comparison alone would fail: {rows.newest['verdict_words']}",
        "inconclusive": "failed no limit, but at least one was inconclusive.",
        "pass": "was within its limits.",
        None: f"was not judged{'' if state in ENDED_WELL else ': it is ' + state}.",
    }[rows.newest["verdict"]]
    return f"The latest run, {show_night(rows.newest)}, {verdict}"


def show_night(run: Row) -> str:
    """Format a run as its start time."""
    return f"{run['started_at']:%Y-%m-%d %H:%M}"


SHIFTS = (
    Column("metric", lambda one: one.title),
    Column("since (UTC)", lambda one: show_night(one.run), show_name),
    Column("run", lambda one: one.run["run_id"], show_name),
    Column("before", lambda one: one.show(one.shift.before), show_number),
    Column("after", lambda one: one.show(one.shift.after), show_number),
    Column("change", lambda one: one.show_change(one.shift.change), show_number),
    Column("95% CI", lambda one: one.interval, show_number),
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
    Column("metric", lambda row: head(name_metric(row["metric"]))),
    valued("baseline", "value"),
    Column("interval or range", show_interval, show_number),
    Column("runs", lambda row: f"{row['repeats']}", show_number),
)


def compose_history(rows: HistoryRows) -> Document:
    """Build the history document."""
    run, first = rows.newest, rows.runs[0]
    identity = [run["name"], run["model"], run["prompt_set"]]
    days = f"{first['started_at']:%Y-%m-%d} to {run['started_at']:%Y-%m-%d}"
    return Document.of(
        f"{run['name']} over time",
        f"{run['model']} on {run['prompt_set']}, {count(len(rows.runs), 'run')}, {days}",
        "history",
        write_headline(rows),
        _choose_figures(rows),
        [
            _draw_all(rows),
            make_section(
                "shifts",
                "Level shifts",
                tabulate("Level shifts beyond chance", SHIFTS, rows.shifts),
                None if rows.shifts else say_no_shift(rows),
                HOW_SHIFTS,
            ),
            make_section(
                "changes",
                "Changed conditions",
                tabulate("Changed conditions, by first run", CHANGES, rows.changes)
                if rows.changes
                else "Model, prompts, settings, vLLM, torch, driver, device, machine and assayline did not change.",
            ),
            _describe_baseline(rows),
            make_section("runs", "Runs", tabulate_nights(rows)),
        ],
        f"histories/{name_folder(run['name'], identity, is_plain=not rows.others)}",
    )


HOW_SHIFTS = (
    "A level shift (change point) is reported if the largest difference of means over all splits of the history is "
    "larger than in nearly all of its reorderings, which preserve the correlation between neighboring runs. Each side "
    f"has at least {SHORTEST_NIGHTS} runs, so a single outlier is not a shift. If nothing shifts, at most "
    f"{show_share(FALSE_ALARMS)} of pages are expected to show a shift, over all metrics together (see "
    "docs/concepts/statistics.md for measured rates)."
)


def _choose_figures(rows: HistoryRows) -> list[Figure | None]:
    """Return the latest value of each metric, with its baseline."""
    worse = {one.metric for one in rows.shifts if one.is_worse and one.until is None}
    figures = []
    for metric, values in rows.values.items():
        for last in list_counted(values)[-1:]:
            band = rows.band.get(metric)
            base = f"baseline {show_metric(band['value'], band['unit'])}" if band else None
            figures.append(make_figure(metric, last, base or f"on {last['started_at']:%Y-%m-%d}", metric in worse))
    judged = [run["verdict"] for run in rows.runs if run["verdict"]]
    failed = judged.count("fail")
    told = Figure("Gate failed", f"{failed} of {len(judged)}", "runs judged by a gate", failed > 0)
    return [*figures, told if judged else None]


def _draw_all(rows: HistoryRows) -> Section | None:
    """Draw a chart per metric, all over the same dates."""
    if not rows.values:
        return make_section("time", "Over time", "No run has a value of any metric on this page.")
    parts = [
        "Each dot is a run, with the 95% interval over its own requests if there is one",
        *(["the band is the baseline's interval, or the range of its repeats"] if rows.band else []),
        *(["dashed lines mark changed conditions"] if rows.changes else []),
        "a ring marks a failed limit on this metric, a pale dot a run that does not count",
        *(["lines through the dots are the detected levels"] if rows.shifts else []),
    ]
    return make_section("time", "Over time", f"{'; '.join(parts)}.", map(partial(_draw, rows), rows.values))


def _draw(rows: HistoryRows, metric: str) -> Chart:
    """Draw a metric over the nights."""
    values = rows.values[metric]
    show, shifts = partial(show_metric, unit=values[-1]["unit"]), [one for one in rows.shifts if one.metric == metric]
    title, factor = choose_axis(values[-1]["unit"], [row["value"] for row in values])
    failed = {
        run["run_id"] for run in rows.runs if any(limit.startswith(metric) for limit in run["failed_limits"] or ())
    }

    def scale(row: Row) -> Row:
        return {key: None if row[key] is None else row[key] * factor for key in ("value", "low", "high")}

    points = [
        {
            "started_at": row["started_at"],
            **scale(row),
            "run": row["run_id"],
            "shown": show(row["value"]),
            "has_failed": row["run_id"] in failed,
            "is_counted": row["is_counted"],
        }
        for row in values
    ]
    levels = [(rows.runs[0]["started_at"], shifts[0].shift.before)] if shifts else []
    levels += [(one.run["started_at"], one.shift.after) for one in shifts]
    marks = {}
    for at, changed in groupby(rows.changes, key=itemgetter("started_at")):
        told = {row["condition"]: row["words"] for row in changed}
        marks[at] = ", ".join(told), "; ".join(f"{name}: {words}" for name, words in told.items())
    drawn = draw_nights(
        points,
        title,
        span=(rows.runs[0]["started_at"], rows.newest["started_at"]),
        band=scale(rows.band[metric]) if metric in rows.band else None,
        levels=[(at, level * factor) for at, level in levels],
        marks=marks,
    )
    shown = [row["value"] for row in list_counted(values) or values]
    moved = "; ".join(
        f"from {show(one.shift.before)} to {show(one.shift.after)} on {show_night(one.run)}" for one in shifts
    )
    described = (
        f"Between {show(min(shown))} and {show(max(shown))}, {show(values[-1]['value'])} on {show_night(values[-1])}."
        + (f" Shifted {moved}." if moved else "")
    )
    return Chart(head(name_metric(metric)), described, drawn)


def _describe_baseline(rows: HistoryRows) -> Section | None:
    unset = (
        "No baseline is set. To set one, pin a run with `assayline baseline pin NAME RUN_ID`, and set gate.baseline in "
        "the spec to its name."
    )
    if (base := rows.baseline_run) is None:
        return make_section("baseline", "Baseline", rows.obstacle or unset)
    return make_section(
        "baseline",
        "Baseline",
        f"{rows.baseline}: run {base['run_id']} of {show_night(base)}. For accuracy, the table shows its own value "
        "with the 95% interval; for speed, the median and range of its repeats.",
        tabulate("Baseline levels", BAND, (rows.band[metric] for metric in METRICS if metric in rows.band)),
    )


def _show_verdict(run: Row) -> str:
    """Format the gate's verdict and the failed limits."""
    return ": ".join([run["verdict"] or DASH, *filter(None, [", ".join(map(name_metric, run["failed_limits"] or ()))])])


def tabulate_nights(rows: HistoryRows) -> Table:
    """Tabulate the runs, newest first."""
    shown = list(reversed(rows.runs))
    values = {(row["metric"], row["run_id"]): row for of in rows.values.values() for row in of}
    changed: dict[str, list[str]] = {}
    for row in rows.changes:
        changed.setdefault(row["run_id"], []).append(row["condition"])
    begun: dict[str, list[str]] = {}
    for one in rows.shifts:
        begun.setdefault(one.run["run_id"], []).append(one.title)

    def show_value(metric: str) -> Column:
        def show(run: Row) -> str:
            row = values.get((metric, run["run_id"]), {"value": None, "unit": None})
            return show_metric(row["value"], row["unit"])

        return Column(head(name_metric(metric)), show, show_number)

    def say_note(run: Row) -> str:
        notes = [run["obstacle"]] if run["obstacle"] else []
        notes += [f"changed: {', '.join(changed[run['run_id']])}"] if run["run_id"] in changed else []
        notes += [f"new level: {', '.join(begun[run['run_id']])}"] if run["run_id"] in begun else []
        return "; ".join(notes)

    columns = [
        Column("started (UTC)", show_night, show_name),
        Column("run", "run_id", show_name),
        Column("gate", _show_verdict),
        *map(show_value, rows.values),
        Column("note", say_note, show_note),
    ]
    return tabulate("All runs, newest first", columns, shown, is_folded=len(shown) > FOLDED_FROM)
