"""The page of a history: what became of accuracy, speed, latency and cost over the nights, and since when.

`METRICS` are what the page is about. One more is a line there, once `run_metric` has it. A level that shifted is named
with the conditions that changed on its first night, or since the night before that counts: whether they are the cause,
a reader knows better.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from assayline.comparison.baselines import resolve_baseline
from assayline.comparison.levels import FEWEST_NIGHTS, SHORTEST_NIGHTS, Shift, find_shifts
from assayline.errors import SpecError
from assayline.report.document import Chart, Column, Document, Figure, Paragraph, Section, Table, tabulate
from assayline.report.history_charts import draw_metric
from assayline.spec.identity import list_setting_changes
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import read_all_kept, read_kept
from assayline.words import (
    DASH,
    count,
    nearest,
    show_change,
    show_money,
    show_name,
    show_note,
    show_number,
    show_points,
    show_range,
    show_rate,
    show_seconds,
    show_share,
    show_value,
)

FALSE_ALARMS = 0.05
"""How many pages of histories without a shift may show one: shared out among the metrics that are looked at."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of the page."""

    key: str
    """As in run_metric."""
    title: str
    show: Callable[[float | None], str]
    shown_as: float = 1.0
    """What a chart multiplies it by."""
    axis: str = ""
    """The chart's title of the vertical axis; empty: seconds, in the unit that suits them."""

    def show_shift(self, change: float, before: float) -> str:
        """A change of its level: points of a share, percent of anything else."""
        return show_points(change) if self.key == "accuracy" else show_change(change / before if before else None)


COST = "cost_per_right_answer"
METRICS = (
    Metric("accuracy", "Accuracy", show_share, 100, "%"),
    Metric(
        "output_tokens_per_s", "Output tokens per second", partial(show_rate, what="tokens"), 1, "tokens per second"
    ),
    Metric("ttft_p50_s", "Time to first token, median", show_seconds),
    Metric("tpot_p50_s", "Time per output token, median", show_seconds),
    Metric("e2e_p95_s", "End to end, 95th percentile", show_seconds),
    Metric(COST, "Cost per right answer", show_value, 1, "in the price's currency"),
)


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A level shift of a metric, as the page names it."""

    metric: Metric
    shift: Shift
    run: Row
    """The first run of the new level, a row of show_history."""
    until: Row | None
    """The first run after it; None while it lasts."""
    is_worse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRows:
    """One history's rows, each list in the order of time."""

    metrics: Sequence[Metric]
    """METRICS, with the cost in the currency of the newest price."""
    runs: list[Row]
    values: dict[str, list[Row]]
    """Rows of show_history by metric; metrics without any are left out."""
    changes: list[Row]
    """Rows of show_changes, with `words`: what changed, for people."""
    shifts: list[LevelShift]
    baseline: str | None = None
    """The baseline as it was named, and its run."""
    baseline_run: Row | None = None
    band: dict[str, Row] = field(default_factory=dict)
    """Rows of show_band by metric."""
    obstacle: str | None = None
    """Why there is no baseline where one was named."""
    others: list[str] = field(default_factory=list)
    """Models and prompt sets of other runs with this name, which are histories of their own."""

    @property
    def newest(self) -> Row:
        """The last run."""
        return self.runs[-1]


def read_history(connection: Connection, name: str, baseline: str | None = None) -> HistoryRows:
    """Reads a history by a spec's name, a run's id or a config_id.

    `baseline` is a pinned name or a run's id (default: the one that the newest run's spec names, or that it was last
    judged against). Raises SpecError for a history or a given baseline that is not there.
    """
    with read_all_kept(connection):
        runs = read_rows(connection, "from find_history(?)", name)
    if not runs:
        raise SpecError(_say_unknown(connection, name))
    values: dict[str, list[Row]] = {metric.key: [] for metric in METRICS}
    with read_kept(connection, *(run["run_id"] for run in runs)):
        shown = read_rows(connection, "from show_history(?)", name)
        changes = read_rows(connection, "from show_changes(?)", name)
    for row in shown:
        if row["metric"] in values:
            values[row["metric"]].append(row)
    values = {key: rows for key, rows in values.items() if rows}
    currency = values[COST][-1]["unit"] if COST in values else ""
    metrics = [
        replace(metric, show=partial(show_money, currency=currency)) if metric.key == COST else metric
        for metric in METRICS
    ]
    named, obstacle, found = baseline or _find_named(connection, runs), None, None
    if named is not None:
        try:
            found = resolve_baseline(connection, named)
        except SpecError as error:
            if baseline is not None:
                raise
            obstacle = str(error)
    with read_all_kept(connection, *filter(None, [found])):
        band = read_rows(connection, "from show_band(?)", found) if found else []
    return HistoryRows(
        metrics=metrics,
        runs=runs,
        values=values,
        changes=[_describe_change(connection, row) for row in changes],
        shifts=find_level_shifts(values, metrics),
        baseline=named if found else None,
        baseline_run=read_rows(connection, "select * from runs where run_id = ?", found)[0] if found else None,
        band={row["metric"]: row for row in band},
        obstacle=obstacle,
        others=_list_others(connection, runs[-1]),
    )


def list_counted(rows: Sequence[Row]) -> list[Row]:
    """Values that are judged."""
    return [row for row in rows if row["is_counted"]]


def find_level_shifts(values: dict[str, list[Row]], metrics: Sequence[Metric] = METRICS) -> list[LevelShift]:
    """The shifts of every metric, the first one first; together they are false alarms on FALSE_ALARMS of pages."""
    counted = {key: list_counted(rows) for key, rows in values.items()}
    judged = [metric for metric in metrics if len(counted.get(metric.key, [])) >= FEWEST_NIGHTS]
    found = []
    for metric in judged:
        rows = counted[metric.key]
        for shift in find_shifts([row["value"] for row in rows], FALSE_ALARMS / len(judged)):
            until = rows[shift.until] if shift.until < len(rows) else None
            is_worse = (shift.change > 0) != rows[0]["higher_is_better"]
            found.append(LevelShift(metric, shift, rows[shift.index], until, is_worse))
    return sorted(found, key=lambda one: one.run["position"])


def _find_named(connection: Connection, runs: Sequence[Row]) -> str | None:
    """The baseline that the newest run's spec names, or that a gate used last."""
    (row,) = read_rows(connection, "select spec_json from runs where run_id = ?", runs[-1]["run_id"])
    named = (json.loads(row["spec_json"]).get("gate") or {}).get("baseline")
    return named or next((run["baseline_run_id"] for run in reversed(runs) if run["baseline_run_id"]), None)


def _describe_change(connection: Connection, row: Row) -> Row:
    """The row with words: of settings, the fields that changed; of digests, their beginnings."""
    if row["condition"] == "settings":
        before, after = (
            read_rows(connection, "select spec_json from runs where run_id = ?", run_id)[0]["spec_json"]
            for run_id in (row["run_id_before"], row["run_id"])
        )
        return {**row, "words": "; ".join(list_setting_changes(before, after)) or "the configuration is another one"}
    return {**row, "words": f"{_shorten(row['before'])} → {_shorten(row['after'])}"}


LONGEST_CHARS = 40


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_CHARS else f"{text[: LONGEST_CHARS - 1]}…"


def _list_others(connection: Connection, run: Row) -> list[str]:
    rows = read_rows(
        connection,
        "select model, prompt_set, count(*) as runs from runs where benchmark_id is null and state <> 'running' "
        "and name = ? and (model, prompt_set) <> (?, ?) group by all order by all",
        run["name"],
        run["model"],
        run["prompt_set"],
    )
    return [f"{row['model']} on {row['prompt_set']}" for row in rows]


def _say_unknown(connection: Connection, name: str) -> str:
    rows = read_rows(
        connection, "select distinct name from runs where benchmark_id is null and state <> 'running' order by name"
    )
    names = [row["name"] for row in rows]
    hint = nearest(name, names) if names else "no run has ended yet"
    return (
        f"There is no history {name!r} in the database: {hint}. Give the name of a spec, or the id of a run that is no "
        "part of a benchmark."
    )


MOST_SENTENCES = 4


def write_headline(rows: HistoryRows) -> list[str]:
    """What a reader must know, most important first."""
    lasting = sorted((one for one in rows.shifts if one.until is None), key=lambda one: not one.is_worse)
    over = [one for one in rows.shifts if one.until is not None]
    is_broken = rows.newest["verdict"] == "broken"
    sentences = [f"{_say_newest(rows)}"] if is_broken else []
    sentences += [say_shift(one, rows) for one in lasting[:MOST_SENTENCES]]
    if len(lasting) > MOST_SENTENCES:
        sentences.append(f"{count(len(lasting) - MOST_SENTENCES, 'more shift')} of level is listed below.")
    if over:
        sentences.append(f"{count(len(over), 'earlier level', 'earlier levels')} ended again, and is listed below.")
    if not rows.shifts:
        sentences.append(say_no_shift(rows))
    sentences.append(_say_verdicts(rows))
    if rows.obstacle:
        sentences.append(f"There is no baseline to show. {rows.obstacle}")
    if rows.others:
        sentences.append(
            f"Other runs of this name are not shown: {', '.join(rows.others[:3])}. The id of one of them, in place of "
            "the name, gives their history."
        )
    return [sentence for sentence in sentences if sentence]


def say_shift(one: LevelShift, rows: HistoryRows) -> str:
    """Since which night, by how much, and what else changed then."""
    shift, metric = one.shift, one.metric
    interval = show_interval(one)
    told = f" (95 % interval {interval})" if interval else ""
    return (
        f"{metric.title} is {'worse' if one.is_worse else 'better'} since {show_night(one.run)}: "
        f"{metric.show(shift.before)} before, {metric.show(shift.after)} since, by "
        f"{metric.show_shift(shift.change, shift.before)}{told}.{_say_cause(one, rows)}"
    )


def _say_cause(one: LevelShift, rows: HistoryRows) -> str:
    """Conditions that changed between the last counted night before and the first of the new level."""
    counted = list_counted(rows.values[one.metric.key])
    last = max(row["position"] for row in counted if row["position"] < one.run["position"])
    changed = [row for row in rows.changes if last < row["position"] <= one.run["position"]]
    if not changed:
        return " No condition that is recorded changed then."
    named = "; ".join(f"{row['condition']} ({row['words']})" for row in changed)
    return f" Changed since the run before: {named}."


def say_no_shift(rows: HistoryRows) -> str:
    """Why none is shown."""
    nights = max((len(list_counted(values)) for values in rows.values.values()), default=0)
    if len(rows.runs) == 1:
        return "This is the first run: a history begins with the second."
    if nights < FEWEST_NIGHTS:
        return (
            f"{count(nights, 'run')} that {'counts' if nights == 1 else 'count'} cannot tell a shift of level from "
            f"chance: {FEWEST_NIGHTS} are needed."
        )
    return f"No level has shifted by more than chance in {count(nights, 'run')}."


def _say_verdicts(rows: HistoryRows) -> str:
    judged = [run for run in rows.runs if run["verdict"]]
    broken = [run for run in judged if run["verdict"] == "broken"]
    if not judged:
        return "No gate has judged any of these runs."
    last = "" if rows.newest["verdict"] == "broken" else f" {_say_newest(rows)}"
    return f"Of {count(len(judged), 'run')} that a gate judged, {len(broken)} broke a limit.{last}"


def _say_newest(rows: HistoryRows) -> str:
    state = rows.newest["state"]
    verdict = {
        "broken": f"broke its limits: {rows.newest['verdict_words']}",
        "held": "was within its limits.",
        "not judged": "could not be judged.",
        None: f"was not judged{'' if state == 'completed' else ': it is ' + state}.",
    }[rows.newest["verdict"]]
    return f"The newest, {show_night(rows.newest)}, {verdict}"


def show_night(run: Row) -> str:
    """A run by when it started."""
    return f"{run['started_at']:%Y-%m-%d %H:%M}"


def show_interval(one: LevelShift) -> str:
    """The 95 % interval of its change; empty where there is none."""
    shift, metric = one.shift, one.metric
    return show_range(*(metric.show_shift(end, shift.before) for end in (shift.low, shift.high)))


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
