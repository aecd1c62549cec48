"""Sections of a sweep's report about its points: their latencies against throughput, and all of them in a table."""

from collections.abc import Sequence

from assayline.report.document import Chart, Paragraph, Section
from assayline.report.sweep.charts import draw_latency
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import SPACE, count, show_name, show_rate, show_seconds, show_value

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
        lags = ", ".join(f"{point['label']} (99 % within {show_seconds(point['send_lag_p99_s'])})" for point in late)
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
        Paragraph(f"{count(len(points), 'run')} of model sweep_point, from the lowest load to the highest.")
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
