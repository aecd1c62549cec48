"""Sections about speed: latencies, and throughput over time with what happened to engines."""

from assayline.report.charts import LATENCIES, MARKED_EVENTS, draw_distribution, draw_in_flight, draw_line, draw_rate
from assayline.report.document import Block, Chart, Column, Paragraph, Section, Table, tabulate
from assayline.report.run.rows import LoadRows, ReportRows
from assayline.report.sweep import say_limits
from assayline.store.database import Row
from assayline.words import (
    count,
    name_percentile,
    show_name,
    show_number,
    show_range,
    show_rate,
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
        section.say(_say_untimed(rows))
        return section
    section.say(
        "Time to first token contains the wait in the queue: offline, requests are sent before there is room for "
        "them. Intervals are of 95% and distribution-free; they are about this run's requests, not other runs."
    )
    section.add(_tabulate_percentiles(rows.percentiles))
    for metric, name in LATENCIES.items():
        bins = [row for row in rows.histogram if row["metric"] == metric]
        if not bins:
            section.say(f"{name}: not defined for any request of this run.")
            continue
        percentiles = [row for row in rows.percentiles if row["metric"] == metric]
        section.add(
            Chart(name, _describe_distribution(name, percentiles), draw_distribution(bins, percentiles), is_small=True)
        )
    if rows.turns:
        section.say(
            "Conversations were asked turn by turn: each prompt begins with the turns before it and what the model "
            "answered, which a prefix cache may still hold."
        )
        section.add(tabulate("Turns of conversations", TURNS, rows.turns))
    section.add(tabulate("Percentiles with their intervals", INTERVALS, rows.percentiles, is_folded=True))
    section.add(tabulate("Slowest requests", SLOWEST, rows.slowest, is_folded=True))
    return section


def describe_time(rows: ReportRows) -> Section:
    """Throughput and concurrency on one axis of time, engines' events on both."""
    section = Section("time", "Over time")
    if not rows.activity:
        section.say(_say_untimed(rows))
        return section
    stretches = rows.load.stretches if rows.load else []
    moments = {event["at_s"] for event in rows.events if event["event"] in MARKED_EVENTS}
    marked = f"; lines mark {count(len(moments), 'moment')} at which engines changed" if moments else ""
    if stretches:
        marked += "; dotted lines are where the measured stretch begins and ends"
    slice_s = show_seconds(rows.activity[0]["ends_at_s"] - rows.activity[0]["begins_at_s"])
    section.add(
        Chart(
            "Throughput",
            f"Output tokens per second, in slices of {slice_s}{marked}. Tokens count when their request ends.",
            draw_rate(rows.activity, rows.events, stretches),
        ),
        Chart(
            "In flight",
            f"Requests in flight over time, averaged over slices of {slice_s}, and the window of each engine as a "
            f"dashed line{marked}.",
            draw_in_flight(rows.activity, rows.engines, rows.events, stretches),
        ),
    )
    section.add(*_draw_telemetry(rows, slice_s, marked))
    if not rows.summary["engine_steps"]:
        section.say("There is no telemetry of engines, so how full their steps were is not known.")
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
        f"{name} of {count(median['n'], 'request')}: half within {show_seconds(median['value_s'])}, 99% within "
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
    Column("95% CI", _show_interval, show_number),
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


PATTERNS = {
    "all_at_once": "all requests at once",
    "concurrency": "a closed loop",
    "constant": "at equal distances",
    "poisson": "at random (Poisson)",
    "gamma": "at random, in bursts or more evenly (gamma)",
    "trace": "as a recorded trace says",
}
LIMITS = {"ttft_limit_s": "ttft_s", "tpot_limit_s": "tpot_s", "e2e_limit_s": "e2e_s"}

GOODPUT = (
    Column("objective", "slo"),
    Column("good requests", lambda row: f"{row['good_requests']:,} of {row['requests']:,}", show_number),
    Column("share", "good_share", show_share),
    Column("good requests/s", "good_requests_per_s", show_value),
    Column("good tokens/s", "good_output_tokens_per_s", show_value),
)


def describe_load(rows: ReportRows) -> Section | None:
    """What a reader must know before believing the latencies of a run under load; None for a run without one."""
    if rows.load is None:
        return None
    section = Section("load", "Load")
    section.say(_say_pattern(rows.load.load))
    section.say(_say_end(rows.load, rows.summary))
    if windows := _say_windows(rows.load):
        section.say(windows)
    section.add(*_judge_generator(rows.load.send_lag))
    section.add(*judge_clients(rows.load.clients))
    section.add(*_judge_engine(rows.load.saturation))
    section.add(*judge_throughput(rows.summary))
    section.add(*_tabulate_goodput(rows.load.goodput))
    section.add(*_tabulate_gaps(rows.load.gaps))
    return section


def _say_pattern(load: Row) -> str:
    if load["arrival"] == "concurrency":
        return (
            f"Requests were sent in a closed loop: {load['concurrency']:,} in flight, the next one as one was answered."
        )
    rate = f", {show_rate(load['requests_per_s'], 'requests')}" if load["requests_per_s"] is not None else ""
    shape = f", burstiness {load['burstiness']:g}" if load["burstiness"] is not None else ""
    return (
        f"Requests were sent {PATTERNS[load['arrival']]}{rate}{shape}, in an open loop: when they were due, whether or "
        "not earlier ones had been answered."
    )


def _say_end(load: LoadRows, summary: Row) -> str:
    if load.end is None:
        return "Every request of the prompt set was sent."
    unsent = summary["unsent_requests"]
    if not unsent:
        return str(load.end["message"])
    left = f"That left {count(unsent, 'request')} unsent, which are no errors and in no metric of speed."
    return f"{load.end['message']} {left}"


def _say_windows(load: LoadRows) -> str:
    windows = [
        f"the {end} {show_seconds(load.load[column])}"
        for column, end in (("warmup_s", "first"), ("cooldown_s", "last"))
        if load.load[column]
    ]
    if not windows:
        return ""
    return f"What was sent in {' and '.join(windows)} of the sending is kept, and left out of latencies and throughput."


def _judge_generator(lag: Row | None) -> list[Block]:
    if lag is None:
        return []
    late = f"99% of the requests were sent within {show_seconds(lag['p99_s'])} of when they were due"
    if lag["kept_up"] is not False:
        return [Paragraph(f"{late}, all within {show_seconds(lag['max_s'])}.")]
    return [
        Paragraph(
            f"The generator did not keep up: {late}, and {show_share(lag['late_share'])} were later than "
            f"{show_seconds(lag['tolerance_s'])}. The engine got less than was asked for, and the latencies below "
            "flatter it. Counted from when requests were due, half of the first tokens came within "
            f"{show_seconds(lag['due_ttft_p50_s'])} and 99% within {show_seconds(lag['due_ttft_p99_s'])}.",
            is_warning=True,
        )
    ]


def judge_clients(clients: list[Row]) -> list[Block]:
    """A warning if the client's own event loop made events wait for a sizeable part of latencies: the worst worker."""
    unhealthy = [row for row in clients if not row["is_healthy"]]
    if not unhealthy:
        return []
    worst = unhealthy[0]
    shares = [
        f"{show_share(worst[column])} of the median {name}"
        for column, name in (("ttft_share", "TTFT"), ("tpot_share", "TPOT"))
        if worst[column] is not None
    ]
    return [
        Paragraph(
            f"The client measured itself, too: worker {worst['worker']} let half of the events wait for "
            f"{show_seconds(worst['p50_s'])} and one in a hundred for {show_seconds(worst['p99_s'])} before "
            f"it read them ({' and '.join(shares)}), at most {show_seconds(worst['max_s'])}. "
            "Run it on a machine with free cores.",
            is_warning=True,
        )
    ]


def _judge_engine(saturation: Row | None) -> list[Block]:
    if saturation is None or saturation["arrival"] == "all_at_once":
        return []
    if saturation["is_saturated"] is None:
        return [Paragraph("The run is too short to tell whether requests piled up: fifty or more must be sent.")]
    if not saturation["is_saturated"]:
        return [Paragraph("The engine kept up: requests in flight did not pile up.")]
    return [
        Paragraph(
            f"The engine was saturated: requests in flight grew by {show_rate(saturation['in_flight_growth_per_s'])}, "
            f"as {show_rate(saturation['offered_requests_per_s'], 'requests')} were offered and "
            f"{show_rate(saturation['finished_requests_per_s'], 'requests')} finished. Latencies say how long the run "
            "was: a longer one would show longer ones.",
            is_warning=True,
        )
    ]


def judge_throughput(summary: Row) -> list[Block]:
    """A warning if answers took longer than the sending, so that none finished in the measured stretch."""
    if summary["requests_per_s"] is not None or not summary["measured_requests"]:
        return []
    return [
        Paragraph(
            "The run has no throughput: no answer finished between the warm-up and the cool-down, as answers take "
            "longer than the sending. Send for longer, or shorten the windows.",
            is_warning=True,
        )
    ]


def _tabulate_goodput(goodput: list[Row]) -> list[Block]:
    if not goodput:
        return []
    limits = [
        {"slo": row["slo"], "metric": metric, "limit_s": row[column]}
        for row in goodput
        for column, metric in LIMITS.items()
        if row[column] is not None
    ]
    return [Paragraph(say_limits(limits)), tabulate("Goodput", GOODPUT, goodput)]


def _tabulate_gaps(gaps: list[Row]) -> list[Block]:
    if not gaps:
        return []
    named = (Column(name_percentile(row["percentile"]), place, show_seconds) for place, row in enumerate(gaps, 1))
    columns = (Column("", 0), *named, Column("gaps", -1, show_value))
    cells = ("ITL", *(row["value_s"] for row in gaps), gaps[0]["gaps"])
    return [tabulate("Inter-token latency", columns, [cells])]
