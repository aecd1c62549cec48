"""The report of a benchmark: configurations compared over their repeats; or latency against throughput, goodput against
the offered rate, and every point in a table.

Points at which the generator did not keep up, or the engine was given more than it could do, are marked and named: what
is measured there is about the queue, not about the engine at that rate.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from assayline.benchmark.result import Measured, read_measured
from assayline.errors import SpecError
from assayline.report.comparison import choose_comparison_figures, describe_comparisons, say_comparisons
from assayline.report.document import Chart, Column, Document, Figure, Paragraph, Quote, Section, tabulate
from assayline.report.sweep_charts import draw_good_share, draw_goodput, draw_latency
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import ensure_benchmark
from assayline.words import SPACE, count, show_name, show_rate, show_seconds, show_value


@dataclass(frozen=True, slots=True)
class BenchmarkRows:
    """One benchmark's rows, each list in the order in which it is shown."""

    benchmark_id: str
    runs: list[Row]
    """Of whatever state, the first one first."""
    points: list[Row]
    """Runs that have a load and are completed, from the lowest to the highest."""
    goodput: list[Row]
    """Of these runs."""
    slos: list[Row]
    """Limits, as the newest run has them."""
    measured: list[Measured]
    """The configurations, the first one first, where no run has a load; empty for a sweep of loads."""
    values: list[Row]
    """Rows of run_metric with config_id, of their repeats."""

    @property
    def unfinished(self) -> list[Row]:
        """The last run of each configuration that no run completed."""
        completed = {run["config_id"] for run in self.runs if run["state"] == "completed"}
        return list({run["config_id"]: run for run in self.runs if run["config_id"] not in completed}.values())


def read_achieved_rates(connection: Connection, benchmark_id: str, config_ids: Sequence[str]) -> list[float | None]:
    """Requests per second that these configurations achieved: medians over completed runs, None where nothing did."""
    query = """
        select median(value)
        from metric_values
        join runs using (run_id)
        where benchmark_id = ? and config_id = ? and state = 'completed' and metric = 'requests_per_s'
    """
    ensure_benchmark(connection, benchmark_id)
    return [connection.execute(query, [benchmark_id, one]).fetchall()[0][0] for one in config_ids]


def read_benchmark_rows(connection: Connection, benchmark_id: str) -> BenchmarkRows:
    """Reads a benchmark. Raises SpecError where the database has none of its runs."""

    def of_benchmark(query: str) -> list[Row]:
        return read_rows(connection, query, benchmark_id)

    runs = of_benchmark("select * from runs where benchmark_id = ? order by started_at, run_id")
    if not runs:
        raise SpecError(
            f"There is no run of a benchmark {benchmark_id!r} in the database. Give the id of one, as the column "
            "benchmark_id of the table runs has it."
        )
    ensure_benchmark(connection, benchmark_id)
    points = of_benchmark(_POINTS)
    values = [] if points else of_benchmark(_VALUES)
    measured = []
    if not points:
        gate = json.loads(runs[0]["spec_json"]).get("gate") or {}
        measured = read_measured(connection, benchmark_id, label_configurations(runs), gate.get("max_slowdown") or {})
    return BenchmarkRows(
        benchmark_id=benchmark_id,
        runs=runs,
        points=points,
        goodput=of_benchmark(_GOODPUT),
        slos=read_rows(connection, "select * from slos where run_id = ? order by slo, metric", runs[-1]["run_id"]),
        measured=measured,
        values=values,
    )


def label_configurations(runs: Sequence[Row]) -> dict[str, str]:
    """By config_id what varies, as `max_concurrency 32`: names of runs without the words that all begin with."""
    names = {run["config_id"]: run["name"].split(" ") for run in runs}
    begins = zip(*(words[:-1] for words in names.values()), strict=False)
    shared = sum(1 for _ in takewhile(lambda found: len(set(found)) == 1, begins))
    return {config_id: _shorten(" ".join(words[shared:])) for config_id, words in names.items()}


def _shorten(label: str) -> str:
    """engine.max_concurrency=32 as max_concurrency 32."""
    parts = (part.partition("=") for part in label.split(", "))
    return ", ".join(f"{field.rsplit('.', 1)[-1]} {value}" if equals else field for field, equals, value in parts)


_VALUES = """
    select run_conditions.config_id, run_metric.metric, run_metric.unit, run_metric.value
    from run_conditions
    join run_metric using (run_id)
    where run_conditions.benchmark_id = ? and run_conditions.obstacle is null and run_metric.value is not null
    order by run_metric.metric, run_id
"""

_POINTS = """
    select load_point.*
    from load_point
    join runs on runs.run_id = load_point.run_id
    where load_point.benchmark_id = ? and runs.state = 'completed'
    order by
        case load_point.arrival when 'concurrency' then 0 when 'all_at_once' then 2 else 1 end,
        load_point.concurrency,
        load_point.offered_requests_per_s,
        runs.started_at
"""
_GOODPUT = """
    select
        runs.run_id,
        detail as slo,
        max(value) filter (metric = 'good_share') as good_share,
        max(value) filter (metric = 'good_requests_per_s') as good_requests_per_s
    from metric_values
    join runs using (run_id)
    left join loads using (run_id)
    where runs.benchmark_id = ? and runs.state = 'completed' and source = 'load_value' and detail is not null
    group by runs.run_id, runs.started_at, detail, loads.requests_per_s
    order by slo, loads.requests_per_s, runs.started_at
"""


SMALL = {
    "Time per output token, median": {"tpot_p50_s": "median"},
    "ITL, 99th percentile": {"itl_p99_s": "99th percentile"},
    "End to end, median": {"e2e_p50_s": "median"},
}
"""Titles of small charts, and what they draw."""

FIRST_TOKEN = {"ttft_p50_s": "median", "ttft_p99_s": "99th percentile"}


def label_points(points: Sequence[Row]) -> list[Row]:
    """The points with what a reader calls them, and whether what was measured there is marked.

    None is the knee unless a load between one at a time and all at once is trusted: of two ends one is always it.
    """
    marks = [point["kept_up"] is False or point["is_saturated"] is True for point in points]
    has_knee = any(
        not is_marked and point["arrival"] != "all_at_once" and point["concurrency"] != 1
        for point, is_marked in zip(points, marks, strict=True)
    )
    return [
        {**point, "label": _name(point), "is_marked": is_marked, "is_knee": point["is_knee"] and has_knee}
        for point, is_marked in zip(points, marks, strict=True)
    ]


def _name(point: Row) -> str:
    if point["arrival"] == "concurrency":
        return "one at a time" if point["concurrency"] == 1 else f"{point['concurrency']:,} at a time"
    if point["offered_requests_per_s"] is None:
        return str(point["arrival"]).replace("_", " ")
    return show_rate(point["offered_requests_per_s"]).replace(SPACE, "")


def find_knee(points: Sequence[Row]) -> Row | None:
    """The point that the model calls the knee."""
    return next((point for point in points if point["is_knee"]), None)


def count_marked(points: Sequence[Row]) -> tuple[int, int]:
    """Points at which requests were sent late, and at which the engine was saturated."""
    return sum(point["kept_up"] is False for point in points), sum(point["is_saturated"] is True for point in points)


def describe_latency_under_load(points: list[Row]) -> Section:
    """Latency against throughput, the knee marked."""
    section = Section("latency", "Latency against throughput")
    timed = [point for point in points if point["requests_per_s"] is not None and point["ttft_p50_s"] is not None]
    if not timed:
        section.blocks.append(Paragraph("No point has both a throughput and a time to first token."))
        return section
    section.blocks.append(
        Paragraph(
            "Each dot is a run under another load, which its label names; the line follows the load."
            + (
                " Up to the knee more load buys more throughput at little latency, beyond it more load buys waiting."
                if find_knee(points)
                else ""
            )
        )
    )
    section.blocks.extend(_warn(points))
    section.blocks.append(
        Chart("Time to first token", _describe(points, "ttft_p50_s"), draw_latency(timed, FIRST_TOKEN))
    )
    for title, columns in SMALL.items():
        column = next(iter(columns))
        shown = [point for point in timed if point[column] is not None]
        if shown:
            section.blocks.append(
                Chart(title, _describe(shown, column), draw_latency(shown, columns, is_small=True), is_small=True)
            )
    return section


def _warn(points: Sequence[Row]) -> list[Paragraph]:
    """What a reader must know before believing a dot."""
    warnings = []
    if late := [point for point in points if point["kept_up"] is False]:
        lags = ", ".join(f"{point['label']} (99% within {show_seconds(point['send_lag_p99_s'])})" for point in late)
        warnings.append(
            f"The generator did not keep up at {lags}: requests were sent later than they were due. The engine got "
            "less than was asked for, and latencies there are shorter than users would have seen."
        )
    if saturated := [point["label"] for point in points if point["is_saturated"]]:
        warnings.append(
            f"The engine was saturated at {', '.join(saturated)}: requests piled up for as long as they came, so "
            "latencies there are about the length of the run. A longer run would show longer ones."
        )
    if warnings:
        warnings.append("These points are ringed in the charts.")
    return [Paragraph(text, is_warning=index < len(warnings) - 1) for index, text in enumerate(warnings)]


def _describe(points: Sequence[Row], column: str) -> str:
    knee = find_knee(points)
    lowest, highest = (
        choose((point for point in points if point[column] is not None), key=lambda point: point["requests_per_s"] or 0)
        for choose in (min, max)
    )
    at_knee = f", {show_seconds(knee[column])} at the knee, {knee['label']}" if knee else ""
    return (
        f"Median {show_seconds(lowest[column])} at {show_rate(lowest['requests_per_s'], 'requests')}{at_knee}, and "
        f"{show_seconds(highest[column])} at {show_rate(highest['requests_per_s'], 'requests')}."
    ).replace("Median", "99th percentile" if "p99" in column else "Median")


def list_points(points: list[Row]) -> Section:
    """Every point with what was offered, what was achieved and how it felt."""
    section = Section("points", "Points")
    section.blocks.append(
        Paragraph(f"{count(len(points), 'run')} of the table load_point, from the lowest load to the highest.")
    )
    section.blocks.append(tabulate("All points", POINTS, points))
    return section


def _say_note(point: Row) -> str:
    notes = ["knee"] if point["is_knee"] else []
    if point["kept_up"] is False:
        notes.append("sent late")
    if point["is_saturated"]:
        notes.append("saturated")
    return ", ".join(notes)


POINTS = (
    Column("load", "label", show_name),
    Column("offered /s", "offered_requests_per_s", show_value),
    Column("answered /s", "requests_per_s", show_value),
    Column("tokens /s", "output_tokens_per_s", show_value),
    Column("first token p50", "ttft_p50_s", show_seconds),
    Column("first token p99", "ttft_p99_s", show_seconds),
    Column("per token p50", "tpot_p50_s", show_seconds),
    Column("ITL p99", "itl_p99_s", show_seconds),
    Column("end to end p50", "e2e_p50_s", show_seconds),
    Column("in flight", "mean_in_flight_requests", show_value),
    Column("send lag p99", "send_lag_p99_s", show_seconds),
    Column("note", _say_note, show_name),
)


METRICS = {"ttft_s": "first token", "tpot_s": "per output token", "e2e_s": "end to end"}
AMPLE = 0.95
"""Share of good requests up to which a rate is said to be fine."""


def describe_goodput(points: list[Row], goodput: list[Row], slos: list[Row]) -> Section:
    """Goodput against the offered rate, for each objective."""
    section = Section("goodput", "Goodput")
    offered = {
        point["run_id"]: point["offered_requests_per_s"]
        for point in points
        if point["offered_requests_per_s"] is not None
    }
    if not slos:
        section.blocks.append(
            Paragraph(
                "The spec says nothing of what users put up with, so no request is good or bad. Add it, such as "
                "slos: [{name: interactive, ttft_s: 0.5, tpot_s: 0.05}], and start the benchmark again."
            )
        )
    else:
        section.blocks.append(Paragraph(say_limits(slos)))
    if not offered:
        section.blocks.append(Paragraph("No point has a rate that was offered, so there is nothing to draw over it."))
        return section
    section.blocks.append(
        Chart(
            "Answered and good, against offered",
            "On the dashed line everything that is offered is answered, or good. "
            "Loads without a rate, such as all at once, are not in this chart.",
            draw_goodput(points, goodput, offered),
        )
    )
    if any(row["run_id"] in offered and row["good_share"] is not None for row in goodput):
        section.blocks.append(
            Chart(
                "Share of requests that are good",
                _describe_shares(goodput, offered),
                draw_good_share(goodput, offered),
            )
        )
    return section


def say_limits(slos: Sequence[Row]) -> str:
    """What a good request is: rows have slo, metric and limit_s."""
    limits: dict[str, list[str]] = {}
    for row in slos:
        limits.setdefault(row["slo"], []).append(f"{METRICS[row['metric']]} within {show_seconds(row['limit_s'])}")
    told = "; ".join(f"{slo}: {', '.join(parts)}" for slo, parts in limits.items())
    return f"A request is good if it is answered and within every limit. {told}."


def _describe_shares(goodput: Sequence[Row], offered: Mapping[str, float]) -> str:
    """Up to which offered rate nearly all requests are good, in words."""
    parts = []
    for slo in dict.fromkeys(row["slo"] for row in goodput):
        rows = [row for row in goodput if row["slo"] == slo and row["run_id"] in offered]
        rows.sort(key=lambda row: offered[row["run_id"]])
        ample = [offered[row["run_id"]] for row in takewhile(lambda row: (row["good_share"] or 0.0) >= AMPLE, rows)]
        if ample:
            parts.append(f"for {slo} at least {AMPLE:.0%} are good up to {show_rate(ample[-1], 'requests')}")
        elif rows:
            parts.append(f"for {slo} fewer than {AMPLE:.0%} are good at the lowest rate already")
    words = "; ".join(parts)
    return f"{words[:1].upper()}{words[1:]}."


SPEC_CHARACTERS = 6_000
RUNS = (
    Column("name", "name", show_name),
    Column("run", "run_id", show_name),
    Column("state", "state"),
    Column("started, UTC", lambda run: f"{run['started_at']:%Y-%m-%d %H:%M:%S}", show_name),
)


def compose_benchmark(rows: BenchmarkRows, left: int | None = None) -> Document:
    """The report of a benchmark before it has a form. `left` are its runs that are still to do, if that is known."""
    points = label_points(rows.points)
    first, unfinished = rows.runs[0], rows.unfinished
    if points:
        found = [_say_knee(points), _say_ends(points), _say_goodput(points, rows)]
        sections = [
            describe_latency_under_load(points),
            describe_goodput(points, rows.goodput, rows.slos),
            list_points(points),
        ]
    else:
        found = say_comparisons(rows.measured)
        sections = describe_comparisons(rows.measured, rows.values)
    return Document(
        title=f"{first['model'].rstrip('/').rsplit('/', 1)[-1]} {'under load' if points else 'compared'}",
        subtitle=f"{first['model']} on {first['prompt_set']}, benchmark {rows.benchmark_id}",
        state="unfinished" if unfinished or left else "completed",
        headline=[sentence for sentence in (*found, _say_trouble(points, rows, left)) if sentence],
        figures=_choose_figures(points, rows) if points else choose_comparison_figures(rows.measured),
        sections=[*sections, _describe_runs(rows)],
    )


def _say_knee(points: list[Row]) -> str:
    knee = find_knee(points)
    if knee is None:
        if all(point["power"] is None for point in points):
            return "There is no knee: no point has both a throughput and a latency."
        return "There is no knee: no load between one at a time and all at once can be trusted."
    return (
        f"The knee is at {show_rate(knee['requests_per_s'], 'requests')}: the most throughput for its latency, with "
        f"the first token within {show_seconds(knee['ttft_p50_s'])} for half of the requests and "
        f"{show_seconds(knee['ttft_p99_s'])} for 99%."
    )


def _say_ends(points: list[Row]) -> str:
    named = {point["label"]: point for point in points}
    lowest, highest = named.get("one at a time"), named.get("all at once")
    if not lowest or not highest:
        return ""
    return (
        f"One at a time the engine answers {show_rate(lowest['requests_per_s'], 'requests')}, all at once "
        f"{show_rate(highest['requests_per_s'], 'requests')}."
    )


def _say_goodput(points: list[Row], rows: BenchmarkRows) -> str:
    labels = {point["run_id"]: point["label"] for point in points}
    best = _find_best_goodput(rows)
    return " ".join(
        f"Most goodput for {slo}: {show_rate(row['good_requests_per_s'], 'requests')}, at {labels[row['run_id']]}."
        for slo, row in best.items()
        if row["run_id"] in labels
    )


def _find_best_goodput(rows: BenchmarkRows) -> dict[str, Row]:
    """By objective, the point with the most good requests per second."""
    best: dict[str, Row] = {}
    for row in rows.goodput:
        rate, known = row["good_requests_per_s"], best.get(row["slo"])
        if rate is not None and (known is None or rate > known["good_requests_per_s"]):
            best[row["slo"]] = row
    return best


def _say_trouble(points: list[Row], rows: BenchmarkRows, left: int | None) -> str:
    behind, saturated = count_marked(points)
    parts = []
    if behind:
        parts.append(f"at {count(behind, 'point')} requests were sent late, so the latencies there flatter the engine")
    if saturated:
        parts.append(f"{count(saturated, 'point is', 'points are')} beyond what the engine can do")
    if rows.unfinished:
        parts.append(f"{count(len(rows.unfinished), 'configuration')} did not complete")
    if left:
        parts.append(f"{count(left, 'run is', 'runs are')} left to do")
    return f"Mind: {'; '.join(parts)}." if parts else ""


def _choose_figures(points: list[Row], rows: BenchmarkRows) -> list[Figure]:
    knee = find_knee(points)
    fastest = max(points, key=lambda point: point["requests_per_s"] or 0.0)
    behind, saturated = count_marked(points)
    return [
        Figure(
            "Knee",
            show_rate(knee["requests_per_s"] if knee else None, "requests"),
            knee["label"] if knee else "no trusted load between the ends",
        ),
        *([Figure("First token at the knee", show_seconds(knee["ttft_p50_s"]), "median")] if knee else []),
        Figure(
            "Most throughput",
            show_rate(fastest["requests_per_s"], "requests"),
            f"{show_rate(fastest['output_tokens_per_s'], 'tokens')}, {fastest['label']}",
        ),
        *(
            Figure(f"Good for {slo}", show_rate(row["good_requests_per_s"], "requests"), "the most of all points")
            for slo, row in list(_find_best_goodput(rows).items())[:2]
        ),
        Figure(
            "Points that are marked",
            f"{sum(point['is_marked'] for point in points):,}",
            f"of {len(points):,}; {behind:,} sent late, {saturated:,} saturated",
            is_bad=behind > 0,
        ),
    ]


def _describe_runs(rows: BenchmarkRows) -> Section:
    section = Section("runs", "Runs")
    for run in rows.unfinished:
        section.blocks.append(
            Paragraph(f"{run['name']} is {run['state']}: {run['message'] or 'no reason is known'}", is_warning=True)
        )
    section.blocks.append(tabulate("Runs", RUNS, rows.runs, is_folded=True))
    text = json.dumps(json.loads(rows.runs[0]["spec_json"]), indent=2, ensure_ascii=False)
    section.blocks.append(Quote("The spec of the first run", text[:SPEC_CHARACTERS], len(text)))
    return section
