"""The report of a benchmark: configurations compared over their repeats; or latency against throughput, goodput against
the offered rate, and every point in a table.

Points at which the generator did not keep up, or the engine was given more than it could do, are marked and named: what
is measured there is about the queue, not about the engine at that rate.
"""

import json

from assayline.report.document import Document, Figure, Paragraph, Quote, Section
from assayline.report.sweep.comparison import choose_comparison_figures, describe_comparisons, say_comparisons
from assayline.report.sweep.goodput import describe_goodput
from assayline.report.sweep.points import (
    count_marked,
    describe_latency_under_load,
    find_knee,
    label_points,
    list_points,
)
from assayline.report.sweep.rows import BenchmarkRows
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import count, show_name, show_rate, show_seconds

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
        f"{show_seconds(knee['ttft_p99_s'])} for 99 %."
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
