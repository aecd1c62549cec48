"""The report of a benchmark: configurations compared over repeats, or latency, throughput and goodput of a load sweep.

Points at which the load generator fell behind or the engine was saturated are flagged: their latencies reflect the
queue, not the engine at that rate.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from assayline.benchmark.campaign import Campaign
from assayline.benchmark.frontier import name_configs, store_frontier
from assayline.benchmark.profile import GOAL
from assayline.benchmark.result import Measured, read_measured
from assayline.errors import SpecError
from assayline.report.charts import Spec, draw_curve
from assayline.report.comparison import (
    choose_comparison_figures,
    choose_noise_figures,
    describe_frontier,
    describe_noise,
    describe_repeats,
    describe_speed,
    draw_latency,
    mark,
    read_noise,
    say_comparisons,
    say_noise,
    show_label,
)
from assayline.report.document import Chart, Column, Document, Figure, Part, Section, make_section, tabulate, warn
from assayline.report.measures import measured, quote_spec
from assayline.report.search import read_probes, say_search
from assayline.spec.criteria import GateSpec
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import ensure_benchmark
from assayline.words import SPACE, count, name_metric, show_name, show_rate, show_seconds, show_value


@dataclass(frozen=True, slots=True)
class BenchmarkRows:
    """Rows of one benchmark, each list in display order."""

    benchmark_id: str
    runs: list[Row]
    """Runs in any state, earliest first."""
    points: list[Row]
    """Completed runs with a load, lowest load first."""
    goodput: list[Row]
    """Goodput of these runs."""
    slos: list[Row]
    """SLOs of the latest run."""
    measured: list[Measured]
    """Configurations in order, if no run has a load; empty for a load sweep, and for several tasks."""
    frontier: list[Row]
    """Rows of the view frontier, the best first; empty for a load sweep."""
    search: str = ""
    """The result of a search for an SLO's rate."""
    unread: Sequence[str] = ()
    """Why configurations have no reading, in a benchmark by kl."""
    noise: Sequence[Row] = ()
    """Rows of `read_noise`, if there is one configuration, no load, and the noise was measured."""

    @property
    def unfinished(self) -> list[Row]:
        """The last run of each configuration without a completed run."""
        completed = {run["config_id"] for run in self.runs if run["state"] == "completed"}
        return list({run["config_id"]: run for run in self.runs if run["config_id"] not in completed}.values())


def read_benchmark_rows(connection: Connection, benchmark_id: str, plan: Campaign | None = None) -> BenchmarkRows:
    """Read a benchmark and store its comparisons. Raises SpecError if the database has no run of it.

    `plan` names the baseline and the weights of the tasks.
    """

    def of_benchmark(query: str) -> list[Row]:
        return read_rows(connection, query, benchmark_id)

    runs = of_benchmark("select * from runs where benchmark_id = ? order by started_at, run_id")
    if not runs:
        raise SpecError(
            f"Benchmark {benchmark_id!r} has no run in the database. hint: pass a value of the column "
            "benchmark_id of the table runs."
        )
    ensure_benchmark(connection, benchmark_id)
    points = of_benchmark(_POINTS)
    measured: list[Measured] = []
    noise: list[Row] = []
    slo = plan.profile.slo if plan and plan.profile and points else None
    if not points:
        names = name_configs(runs, plan)
        if len({task for task, _ in names.values()}) == 1:
            gate = json.loads(runs[0]["spec_json"]).get("gate") or {}
            ran = {run["config_id"] for run in runs}
            labels = {config_id: label for config_id, (_, label) in names.items() if config_id in ran}
            base = next((one for one, (_, label) in names.items() if plan and label == plan.baseline), None)
            measured = read_measured(connection, benchmark_id, labels, gate, base)
        store_frontier(connection, benchmark_id, plan)
        noise = read_noise(connection, benchmark_id) if len(measured) == 1 else []
    return BenchmarkRows(
        benchmark_id=benchmark_id,
        runs=runs,
        points=points,
        goodput=of_benchmark(_GOODPUT),
        slos=read_rows(connection, "select * from slos where run_id = ? order by slo, metric", runs[-1]["run_id"]),
        measured=measured,
        frontier=of_benchmark("from frontier where benchmark_id = ?"),
        search=say_search(slo, read_probes(connection, benchmark_id, slo)) if slo else "",
        unread=[f"{show_label(one)}: {why}".partition(" hint: ")[0] for one, why in plan.page.items()] if plan else (),
        noise=noise,
    )


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
    where runs.benchmark_id = ? and runs.state = 'completed' and metric like 'good%'
    group by runs.run_id, runs.started_at, detail, loads.requests_per_s
    order by slo, loads.requests_per_s, runs.started_at
"""


SMALL = ("tpot_p50_s", "itl_p99_s", "e2e_p50_s")
"""Metrics of small charts."""

FIRST_TOKEN = {"ttft_p50_s": "median", "ttft_p99_s": "99th percentile"}


def label_points(points: Sequence[Row]) -> list[Row]:
    """Add labels and flags to the points.

    No point is the knee unless a load between one at a time and all at once is valid: of two ends, one always is.
    """
    marks = [point["kept_up"] is False or point["is_saturated"] is True for point in points]
    has_knee = any(point["knee_obstacle"] is None and point["concurrency"] != 1 for point in points)
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
    """Return the point that the SQL model marks as the knee."""
    return next((point for point in points if point["is_knee"]), None)


def count_marked(points: Sequence[Row]) -> tuple[int, int]:
    """Count the points with late requests, and with a saturated engine."""
    return sum(point["kept_up"] is False for point in points), sum(point["is_saturated"] is True for point in points)


UP_TO_KNEE = (
    " Up to the knee, more load adds throughput at little cost in latency; beyond it, more load mostly adds queueing."
)


def describe_latency_under_load(points: list[Row]) -> Section | None:
    """Build the section on latency against throughput, with the knee."""
    timed = [point for point in points if None not in (point["requests_per_s"], point["ttft_p50_s"])]
    knee = find_knee(points)
    if not timed:
        unknown = "No point has both a throughput and a time to first token."
        return make_section("latency", "Latency against throughput", unknown)
    return make_section(
        "latency",
        "Latency against throughput",
        "Each dot is a run at a different load, shown by its label; the line connects increasing loads."
        + UP_TO_KNEE * bool(knee),
        _warn(points),
        draw_latency("TTFT", timed, FIRST_TOKEN, knee),
        (draw_latency(name_metric(column), timed, {column: name_metric(column)}, knee) for column in SMALL),
    )


def _warn(points: Sequence[Row]) -> Part:
    """Warn about points whose latencies are not valid."""
    late = [point for point in points if point["kept_up"] is False]
    saturated = ", ".join(point["label"] for point in points if point["is_saturated"])
    lags = ", ".join(f"{point['label']} (99% within {show_seconds(point['send_lag_p99_s'])})" for point in late)
    return [
        warn(
            f"The load generator fell behind at {lags}: requests were sent later than their due time. The engine "
            "received less load than specified, so latencies at these points are not those of their loads."
            if late
            else ""
        ),
        warn(
            f"The engine was saturated at {saturated}: the queue grew for as long as requests arrived, so latencies "
            "depend on the length of the run. A longer run would show higher ones."
            if saturated
            else ""
        ),
        "Flagged points have a ring in the charts." if late or saturated else None,
    ]


def _say_note(point: Row) -> str:
    notes = ["knee"] if point["is_knee"] else []
    return ", ".join(notes if point["knee_obstacle"] in (None, "all at once") else [*notes, point["knee_obstacle"]])


POINTS = (
    Column("load", "label", show_name),
    *measured("offered_requests_per_s", is_wide=True),
    *measured("requests_per_s", "output_tokens_per_s", "ttft_p50_s", "ttft_p99_s"),
    *measured("tpot_p50_s", "itl_p99_s", is_wide=True),
    *measured("e2e_p50_s"),
    Column("in flight", "mean_in_flight_requests", show_value),
    Column("send lag p99", "send_lag_p99_s", show_seconds, is_wide=True),
    Column("note", _say_note, show_name),
)


def describe_goodput(points: list[Row], goodput: list[Row], slos: list[Row]) -> Section | None:
    """Build the goodput section: each SLO against the offered rate."""
    rates = {point["run_id"]: point for point in points if point["offered_requests_per_s"] is not None}
    undefined = (
        "The spec has no SLOs, so goodput is undefined. Add them, such as slos: "
        "[{name: interactive, ttft_s: 0.5, tpot_s: 0.05}], and start the benchmark again."
    )
    good = [(rates[row["run_id"]], row) for row in goodput if row["run_id"] in rates]
    return make_section(
        "goodput",
        "Goodput",
        say_limits(slos) if slos else undefined,
        _draw_goodput(rates.values(), good, find_knee(points))
        if rates
        else "No point has an offered rate, so goodput is not drawn.",
    )


def _draw_goodput(points: Collection[Row], good: Sequence[tuple[Row, Row]], knee: Row | None) -> Part:
    """Draw answered and good requests, and their share, against the offered rate."""
    lines = {row["slo"]: f"good for {row['slo']}" for _, row in good}
    answered = [(point, "answered", point["requests_per_s"]) for point in points]
    rates = [(point, lines[row["slo"]], row["good_requests_per_s"]) for point, row in good]
    shares = [(point, lines[row["slo"]], row["good_share"]) for point, row in good if row["good_share"] is not None]

    def draw(title: str, found: Sequence[tuple[Row, str, Any]], **how: Any) -> Spec:
        rows = [
            {"x": point["offered_requests_per_s"], "y": value, "line": line, **mark(point)}
            for point, line, value in found
            if value is not None
        ]
        return draw_curve(rows, ("requests per second offered", title), lines=["answered", *lines.values()], **how)

    ends = {
        "knee": knee["offered_requests_per_s"] if knee else None,
        "diagonal": max(point["offered_requests_per_s"] for point in points),
    }
    return [
        Chart(
            "Answered and good requests against offered rate",
            "The dashed line marks where all offered requests are answered or good. Loads without a rate, such as "
            "all at once, are not in this chart.",
            draw("requests per second", [*answered, *rates], **ends),
        ),
        Chart("Share of good requests", _describe_shares(good), draw("share of requests", shares, is_share=True))
        if shares
        else None,
    ]


def say_limits(slos: Sequence[Row]) -> str:
    """Describe the SLOs: rows have slo, metric and limit_s."""
    limits: dict[str, list[str]] = {}
    for row in slos:
        limits.setdefault(row["slo"], []).append(f"{name_metric(row['metric'])} within {show_seconds(row['limit_s'])}")
    told = "; ".join(f"{slo}: {', '.join(parts)}" for slo, parts in limits.items())
    return f"A request is good if it is answered within every limit. {told}."


def _describe_shares(good: Sequence[tuple[Row, Row]]) -> str:
    """Describe the highest offered rate at which nearly all requests are good."""
    parts = []
    for slo in dict.fromkeys(row["slo"] for _, row in good):
        shares = sorted(
            (point["offered_requests_per_s"], row["good_share"] or 0.0) for point, row in good if row["slo"] == slo
        )
        ample = [rate for rate, _ in takewhile(lambda one: one[1] >= GOAL, shares)]
        up_to = f"at least {GOAL:.0%} are good up to {show_rate(ample[-1], 'requests')}" if ample else ""
        parts.append(f"for {slo}, {up_to or f'fewer than {GOAL:.0%} are good even at the lowest rate'}")
    words = "; ".join(parts)
    return f"{words[:1].upper()}{words[1:]}."


RUNS = (
    Column("name", "name", show_name),
    Column("run", "run_id", show_name),
    Column("state", "state"),
    Column("started (UTC)", lambda run: f"{run['started_at']:%Y-%m-%d %H:%M:%S}", show_name),
)


def compose_benchmark(rows: BenchmarkRows, left: int | None = None) -> Document:
    """Build the benchmark document. `left` is the number of runs still to do, or None if unknown."""
    points, first = label_points(rows.points), rows.runs[0]
    if points:
        figures = _choose_figures(points, rows)
        found = [rows.search or _say_knee(points)]
        sections = [
            describe_latency_under_load(points),
            describe_goodput(points, rows.goodput, rows.slos),
            make_section(
                "points",
                "Points",
                f"{count(len(points), 'run')} of the table load_point, lowest load first.",
                tabulate("All points", POINTS, points),
            ),
        ]
    else:
        limits = {(json.loads(run["spec_json"]).get("gate") or {}).get("max_accuracy_drop") for run in rows.runs}
        limit = (limits - {None} or {GateSpec().max_accuracy_drop}).pop() if len(limits) == 1 else None
        found = say_noise(rows.noise) if rows.noise else say_comparisons(rows.measured, rows.frontier, limit)
        found = [*rows.unread, *found]
        sections = [
            describe_frontier(rows.frontier) if len(rows.frontier) > 1 else None,
            describe_noise(rows.noise) if rows.noise else describe_speed(rows.measured),
            describe_repeats(rows.measured),
        ]
        figures = (
            choose_noise_figures(rows.noise) if rows.noise else choose_comparison_figures(rows.measured, rows.frontier)
        )
    what = "under load" if points else "noise" if rows.noise else "compared"
    return Document.of(
        f"{first['model'].rstrip('/').rsplit('/', 1)[-1]} {what}",
        f"{first['model']} on {first['prompt_set']}, benchmark {rows.benchmark_id}",
        "unfinished" if rows.unfinished or left else "completed",
        [*found, _say_trouble(points, rows, left)],
        figures,
        [*sections, _describe_runs(rows)],
        f"benchmarks/{rows.benchmark_id}",
    )


def _say_knee(points: list[Row]) -> str:
    knee = find_knee(points)
    if knee is None:
        if all(point["power"] is None for point in points):
            return "No knee: no point has both a throughput and a latency."
        why = {p["label"]: p["knee_obstacle"] for p in points if p["knee_obstacle"] and p["arrival"] != "all_at_once"}
        said = "; ".join(f"{label}: {obstacle}" for label, obstacle in why.items())
        return f"No knee: no load between one at a time and all at once is valid{f' ({said})' if said else ''}."
    return (
        f"The knee is at {show_rate(knee['requests_per_s'], 'requests')}, the best trade-off of throughput and "
        f"latency, with TTFT p50 {show_seconds(knee['ttft_p50_s'])} and p99 {show_seconds(knee['ttft_p99_s'])}."
    )


def _find_best_goodput(rows: BenchmarkRows) -> dict[str, Row]:
    """Return the point with the highest goodput of each SLO."""
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
        parts.append(f"requests were sent late at {count(behind, 'point')}, so latencies there are of another load")
    if saturated:
        parts.append(f"the engine was saturated at {count(saturated, 'point')}")
    if rows.unfinished:
        parts.append(f"{count(len(rows.unfinished), 'configuration')} did not complete")
    if left:
        parts.append(f"{count(left, 'run is', 'runs are')} left to do")
    return f"Warning: {'; '.join(parts)}." if parts else ""


def _choose_figures(points: list[Row], rows: BenchmarkRows) -> list[Figure | None]:
    knee = find_knee(points)
    fastest = max(points, key=lambda point: point["requests_per_s"] or 0.0)
    behind, saturated = count_marked(points)
    labels = {point["run_id"]: point["label"] for point in points}
    return [
        Figure(
            "Knee",
            show_rate(knee["requests_per_s"] if knee else None, "requests"),
            knee["label"] if knee else "no valid load between the ends",
        ),
        *([Figure("TTFT at the knee", show_seconds(knee["ttft_p50_s"]), "median")] if knee else []),
        Figure(
            "Max throughput",
            show_rate(fastest["requests_per_s"], "requests"),
            f"{show_rate(fastest['output_tokens_per_s'], 'tokens')}, {fastest['label']}",
        ),
        *(
            Figure(
                f"Good for {slo}",
                show_rate(row["good_requests_per_s"], "requests"),
                f"at {labels[row['run_id']]}, the maximum",
            )
            for slo, row in list(_find_best_goodput(rows).items())[:2]
            if row["run_id"] in labels
        ),
        Figure(
            "Flagged points",
            f"{sum(point['is_marked'] for point in points):,}",
            f"of {len(points):,}; {behind:,} sent late, {saturated:,} saturated",
            is_bad=behind > 0,
        ),
    ]


def _describe_runs(rows: BenchmarkRows) -> Section | None:
    return make_section(
        "runs",
        "Runs",
        (warn(f"{run['name']} is {run['state']}: {run['message'] or 'reason unknown'}") for run in rows.unfinished),
        tabulate("Runs", RUNS, rows.runs, is_folded=True),
        quote_spec("Spec of the first run", json.loads(rows.runs[0]["spec_json"])),
    )
