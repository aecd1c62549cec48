"""Sections about speed: latencies, and throughput over time with what happened to engines."""

from assayline.report.charts import LATENCIES, MARKED_EVENTS, draw_distribution, draw_in_flight, draw_line, draw_rate
from assayline.report.document import Chart, Paragraph, Section
from assayline.report.run.rows import ReportRows
from assayline.report.table import Column, Table, tabulate
from assayline.store.database import Row
from assayline.words import (
    count,
    name_percentile,
    show_name,
    show_number,
    show_range,
    show_seconds,
    show_share,
    show_value,
)

PERCENTILES = (0.5, 0.9, 0.95, 0.99)


def describe_latency(rows: ReportRows) -> Section:
    """Percentiles with intervals, and distributions."""
    section = Section("latency", "Latency")
    measured = {row["metric"] for row in rows.percentiles if row["n"]}
    if not measured:
        section.blocks.append(Paragraph(_say_untimed(rows)))
        return section
    section.blocks.append(
        Paragraph(
            "Time to first token contains the wait in the queue: offline, requests are sent before there is room for "
            "them. Intervals are of 95 % and distribution-free; they are about this run's requests, not other runs."
        )
    )
    section.blocks.append(_tabulate_percentiles(rows.percentiles))
    for metric, name in LATENCIES.items():
        bins = [row for row in rows.histogram if row["metric"] == metric]
        if not bins:
            section.blocks.append(Paragraph(f"{name}: not defined for any request of this run."))
            continue
        percentiles = [row for row in rows.percentiles if row["metric"] == metric]
        section.blocks.append(
            Chart(name, _describe_distribution(name, percentiles), draw_distribution(bins, percentiles), is_small=True)
        )
    if rows.turns:
        section.blocks.append(
            Paragraph(
                "Conversations were asked turn by turn: each prompt begins with the turns before it and what the model "
                "answered, which a prefix cache may still hold."
            )
        )
        section.blocks.append(tabulate("Turns of conversations", TURNS, rows.turns))
    section.blocks.append(tabulate("Percentiles with their intervals", INTERVALS, rows.percentiles, is_folded=True))
    section.blocks.append(tabulate("Slowest requests", SLOWEST, rows.slowest, is_folded=True))
    return section


def describe_time(rows: ReportRows) -> Section:
    """Throughput and concurrency on one axis of time, engines' events on both."""
    section = Section("time", "Over time")
    if not rows.activity:
        section.blocks.append(Paragraph(_say_untimed(rows)))
        return section
    stretches = rows.load.stretches if rows.load else []
    moments = {event["at_s"] for event in rows.events if event["event"] in MARKED_EVENTS}
    marked = f"; lines mark {count(len(moments), 'moment')} at which engines changed" if moments else ""
    if stretches:
        marked += "; dotted lines are where the measured stretch begins and ends"
    slice_s = show_seconds(rows.activity[0]["ends_at_s"] - rows.activity[0]["begins_at_s"])
    section.blocks.extend(
        [
            Chart(
                "Throughput",
                f"Output tokens per second, in slices of {slice_s}{marked}. Tokens count when their request ends.",
                draw_rate(rows.activity, rows.events, "output_tokens_per_s", stretches),
            ),
            Chart(
                "In flight",
                f"Requests in flight over time, averaged over slices of {slice_s}, and the window of each engine as a "
                f"dashed line{marked}.",
                draw_in_flight(rows.activity, rows.engines, rows.events, stretches),
            ),
        ]
    )
    section.blocks.extend(_draw_telemetry(rows, slice_s, marked))
    if not rows.summary["engine_steps"]:
        section.blocks.append(Paragraph("There is no telemetry of engines, so how full their steps were is not known."))
    return section


def _draw_telemetry(rows: ReportRows, slice_s: str, marked: str) -> list[Chart]:
    """What was measured of the KV cache and of power, below the charts that have the same axis."""
    shown = (
        ("kv_cache_usage_share", "KV cache", "share of the KV cache in use", True),
        ("power_watts", "Power", "watts, all GPUs together", False),
    )
    return [
        Chart(
            name,
            f"{title[0].upper()}{title[1:]}, averaged over the samples in slices of {slice_s}{marked}.",
            draw_line(rows.activity, rows.telemetry, rows.events, column, title, is_share),
        )
        for column, name, title, is_share in shown
        if any(row[column] for row in rows.telemetry)
    ]


def _tabulate_percentiles(percentiles: list[Row]) -> Table:
    """A line per latency, for a glance."""
    rows = []
    for metric, name in LATENCIES.items():
        of_metric = {row["percentile"]: row for row in percentiles if row["metric"] == metric}
        values = [of_metric[percentile]["value_s"] for percentile in PERCENTILES]
        rows.append((name, *values, of_metric[0.5]["n"]))
    names = enumerate(map(name_percentile, PERCENTILES), 1)
    named = (Column(name, place, show_seconds) for place, name in names)
    return tabulate("Latency percentiles", (Column("", 0), *named, Column("n", -1, show_value)), rows)


def _name_latency(row: Row) -> str:
    return f"{LATENCIES[row['metric']]}, {name_percentile(row['percentile'])}"


def _show_interval(row: Row) -> str:
    return show_range(show_seconds(row["low_s"]), show_seconds(row["high_s"])) or "too few requests"


def _describe_distribution(name: str, percentiles: list[Row]) -> str:
    by_percentile = {row["percentile"]: row for row in percentiles}
    median, tail = by_percentile[0.5], by_percentile[0.99]
    return (
        f"{name} of {count(median['n'], 'request')}: half within {show_seconds(median['value_s'])}, 99 % within "
        f"{show_seconds(tail['value_s'])}. The pale last bar has all that is longer."
    )


def _say_untimed(rows: ReportRows) -> str:
    if not rows.summary["answered_requests"]:
        return "No request was answered, so there are no times."
    if not rows.summary["ok_requests"]:
        return "Every request ended in an error, and latencies are those of answers."
    return "The engine gave no times for its results."


INTERVALS = (
    Column("latency", _name_latency),
    Column("value", "value_s", show_seconds),
    Column("95 % interval", _show_interval, show_number),
    Column("n", "n", show_value),
)
"""For those who doubt: a line per latency and percentile."""
TURNS = (
    Column("turn", lambda row: f"{row['turn_index'] + 1}", show_number),
    Column("requests", "requests", show_value),
    Column("errors", "error_requests", show_value),
    Column("prompt tokens, mean", "mean_prompt_tokens", show_value),
    Column("of them cached", "cached_share", show_share),
    Column("output tokens, mean", "mean_output_tokens", show_value),
    Column("first token, p50", "ttft_p50_s", show_seconds),
    Column("p95", "ttft_p95_s", show_seconds),
    Column("end to end, p50", "e2e_p50_s", show_seconds),
    Column("p95", "e2e_p95_s", show_seconds),
)
SLOWEST = (
    Column("request", "request_id", show_name),
    Column("end to end", "e2e_s", show_seconds),
    Column("first token", "ttft_s", show_seconds),
    Column("queue", "queue_s", show_seconds),
    Column("prompt tokens", "prompt_tokens", show_value),
    Column("output tokens", "output_tokens", show_value),
    Column("ended by", "finish_reason"),
)
