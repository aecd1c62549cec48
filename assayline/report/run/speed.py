"""Report sections about speed: latency, throughput over time, and load."""

from assayline.report.charts import HEIGHT, LOW, MARKED_EVENTS, draw_distribution, draw_timeline
from assayline.report.document import Block, Chart, Column, Paragraph, Section, Table, tabulate
from assayline.report.run.rows import LoadRows, ReportRows
from assayline.report.sweep import say_limits
from assayline.store.database import Row
from assayline.words import (
    count,
    name_metric,
    name_percentile,
    show_name,
    show_number,
    show_range,
    show_rate,
    show_seconds,
    show_share,
    show_value,
)

LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "e2e_s": "end-to-end latency",
}
"""Latencies of a run, in words."""
PERCENTILES = (0.5, 0.9, 0.95, 0.99)


def describe_latency(rows: ReportRows) -> Section | None:
    """Build the latency section: percentiles with intervals, and distributions; None without times."""
    section = Section("latency", "Latency")
    measured = {row["metric"] for row in rows.percentiles if row["n"]}
    if not measured:
        return None
    section.say(
        "Time to first token includes queueing: offline, requests are sent before the engine has room for them. "
        "The 95% intervals allow for requests that wait for each other, and are missing if too few are independent; "
        "they cover this run's requests, not variation between runs."
    )
    section.add(_tabulate_percentiles(rows.percentiles))
    for metric, name in LATENCIES.items():
        bins = [row for row in rows.histogram if row["metric"] == metric]
        if not bins:
            section.say(f"{name_metric(metric)} is not defined for any request of this run.")
            continue
        percentiles = [row for row in rows.percentiles if row["metric"] == metric]
        section.add(
            Chart(
                name_metric(metric),
                _describe_distribution(f"{name_metric(metric)}, the {name},", percentiles),
                draw_distribution(bins, percentiles),
                is_small=True,
            )
        )
    if rows.turns:
        section.say(
            "Conversations were sent turn by turn: each prompt starts with the earlier turns and the model's "
            "answers to them, which the prefix cache may still hold."
        )
        section.add(tabulate("Conversation turns", TURNS, rows.turns))
    section.add(tabulate("Percentiles with 95% intervals", INTERVALS, rows.percentiles, is_folded=True))
    section.add(tabulate("Slowest requests", SLOWEST, rows.slowest, is_folded=True))
    return section


def describe_time(rows: ReportRows) -> Section | None:
    """Build the section of throughput and concurrency over time, with engine events; None without times."""
    section = Section("time", "Over time")
    if not rows.activity:
        return None
    stretches = rows.load.stretches if rows.load else []
    moments = {event["at_s"] for event in rows.events if event["event"] in MARKED_EVENTS}
    marked = f"; lines mark {count(len(moments), 'moment')} at which engines changed" if moments else ""
    if stretches:
        marked += "; dotted lines mark the measured interval"
    slice_s = show_seconds(rows.activity[0]["ends_at_s"] - rows.activity[0]["begins_at_s"])
    windows = [
        {
            "from": engine["work_began_at_s"],
            "until": engine["work_ended_at_s"],
            "value": engine["last_max_concurrency"],
            "name": f"{engine['worker']}, engine {engine['engine_generation']}",
        }
        for engine in rows.engines
        if engine["work_began_at_s"] is not None and engine["last_max_concurrency"] is not None
    ]
    span = (rows.activity[0]["begins_at_s"], rows.activity[-1]["ends_at_s"])
    for title, column, axis, words in TIMELINES:
        of_run = column in rows.activity[0]
        slices = [
            {"from": row["begins_at_s"], "until": row["ends_at_s"], "value": row[column]}
            for row in (rows.activity if of_run else rows.telemetry)
            if row[column] is not None
        ]
        if not of_run and not any(one["value"] for one in slices):
            continue
        drawn = draw_timeline(
            slices,
            axis,
            rows.events,
            span=span,
            stretches=stretches if of_run else (),
            windows=windows if column == IN_FLIGHT else (),
            is_share=column.endswith("_share"),
            height=HEIGHT if of_run else LOW,
        )
        section.add(Chart(title, words.format(slices=f"in slices of {slice_s}", marked=marked), drawn))
    if not rows.summary["engine_steps"]:
        section.say("There is no engine telemetry, so batch sizes are unknown.")
    return section


IN_FLIGHT = "mean_in_flight_requests"
SAMPLED = "averaged over the samples {slices}{marked}."
TIMELINES = (
    (
        "Throughput",
        "output_tokens_per_s",
        "output tokens per second",
        "Output tokens per second, {slices}{marked}. Tokens count when their request finishes.",
    ),
    (
        "In flight",
        IN_FLIGHT,
        "requests in flight",
        "Requests in flight, averaged {slices}; the dashed line is each engine's maximum{marked}.",
    ),
    ("KV cache", "kv_cache_usage_share", "share of KV cache in use", f"Share of KV cache in use, {SAMPLED}"),
    ("Power", "power_watts", "watts, all GPUs", f"Watts, all GPUs, {SAMPLED}"),
)
"""Charts over time: title, column, axis and description."""


def _tabulate_percentiles(percentiles: list[Row]) -> Table:
    """Tabulate one line per latency."""
    rows = []
    for metric in LATENCIES:
        of_metric = {row["percentile"]: row for row in percentiles if row["metric"] == metric}
        values = [of_metric[percentile]["value_s"] for percentile in PERCENTILES]
        rows.append((name_metric(metric), *values, of_metric[0.5]["n"]))
    names = enumerate(map(name_percentile, PERCENTILES), 1)
    named = (Column(name, place, show_seconds) for place, name in names)
    return tabulate("Latency percentiles", (Column("latency", 0), *named, Column("n", -1, show_value)), rows)


def _name_latency(row: Row) -> str:
    return f"{name_metric(row['metric'])} {name_percentile(row['percentile'])}"


def _show_interval(row: Row) -> str:
    return show_range(show_seconds(row["low_s"]), show_seconds(row["high_s"])) or "too few independent requests"


def _describe_distribution(name: str, percentiles: list[Row]) -> str:
    by_percentile = {row["percentile"]: row for row in percentiles}
    median, tail = by_percentile[0.5], by_percentile[0.99]
    return (
        f"{name} of {count(median['n'], 'request')}: p50 {show_seconds(median['value_s'])}, p99 "
        f"{show_seconds(tail['value_s'])}. The pale last bar holds all longer values."
    )


INTERVALS = (
    Column("latency", _name_latency),
    Column("value", "value_s", show_seconds),
    Column("95% CI", _show_interval, show_number),
    Column("n", "n", show_value),
)
"""One line per latency and percentile."""
TURNS = (
    Column("turn", lambda row: f"{row['turn_index'] + 1}", show_number),
    Column("requests", "requests", show_value),
    Column("errors", "error_requests", show_value),
    Column("prompt tokens, mean", "mean_prompt_tokens", show_value),
    Column("cached", "cached_share", show_share),
    Column("output tokens, mean", "mean_output_tokens", show_value),
    Column("TTFT p50", "ttft_p50_s", show_seconds),
    Column("TTFT p95", "ttft_p95_s", show_seconds),
    Column("E2E p50", "e2e_p50_s", show_seconds),
    Column("E2E p95", "e2e_p95_s", show_seconds),
)
SLOWEST = (
    Column("request", "request_id", show_name),
    Column("E2E", "e2e_s", show_seconds),
    Column("TTFT", "ttft_s", show_seconds),
    Column("queue", "queue_s", show_seconds),
    Column("prompt tokens", "prompt_tokens", show_value),
    Column("output tokens", "output_tokens", show_value),
    Column("finish reason", "finish_reason"),
)


PATTERNS = {
    "all_at_once": "all at once",
    "concurrency": "a closed loop",
    "constant": "at a constant rate",
    "poisson": "with Poisson arrivals",
    "gamma": "with gamma-distributed gaps",
    "trace": "at the times of a recorded trace",
}
LIMITS = {"ttft_limit_s": "ttft_s", "tpot_limit_s": "tpot_s", "e2e_limit_s": "e2e_s"}

GOODPUT = (
    Column("SLO", "slo"),
    Column("good requests", lambda row: f"{row['good_requests']:,} of {row['requests']:,}", show_number),
    Column("share", "good_share", show_share),
    Column("good requests/s", "good_requests_per_s", show_value),
    Column("good output tokens/s", "good_output_tokens_per_s", show_value),
)


def describe_load(rows: ReportRows) -> Section | None:
    """Build the load section, which tells a reader whether the latencies are valid; None for a run without a load."""
    if rows.load is None:
        return None
    section = Section("load", "Load")
    section.say(_say_pattern(rows.load.load))
    section.say(_say_end(rows.load, rows.summary))
    if windows := _say_windows(rows.load):
        section.say(windows)
    section.add(*judge_generator(rows.load.send_lag, rows.load.clients))
    section.add(*judge_clients(rows.load.clients))
    section.add(*_judge_engine(rows.load.saturation))
    section.add(*judge_throughput(rows.summary))
    section.add(*_tabulate_goodput(rows.load.goodput))
    section.add(*_tabulate_gaps(rows.load.gaps))
    return section


def _say_pattern(load: Row) -> str:
    if load["arrival"] == "concurrency":
        return f"Closed loop: {count(load['concurrency'], 'request')} in flight; each answer triggers the next request."
    rate = f", {show_rate(load['requests_per_s'], 'requests')}" if load["requests_per_s"] is not None else ""
    shape = f", burstiness {load['burstiness']:g}" if load["burstiness"] is not None else ""
    return f"Open loop: requests were sent {PATTERNS[load['arrival']]}{rate}{shape}, independently of earlier answers."


def _say_end(load: LoadRows, summary: Row) -> str:
    if load.end is None:
        return "Every request of the prompt set was sent."
    unsent = summary["unsent_requests"]
    if not unsent:
        return str(load.end["message"])
    left = f"{count(unsent, 'request was', 'requests were')} not sent; they are excluded from errors and speed metrics."
    return f"{load.end['message']} {left}"


def _say_windows(load: LoadRows) -> str:
    windows = [
        f"the {end} {show_seconds(load.load[column])}"
        for column, end in (("warmup_s", "first"), ("cooldown_s", "last"))
        if load.load[column]
    ]
    if not windows:
        return ""
    return f"Requests sent in {' and '.join(windows)} are stored but excluded from latency and throughput."


def judge_generator(lag: Row | None, clients: list[Row]) -> list[Block]:
    """Warn if requests were sent late: less load lowers latencies, and a client that also reads late raises them."""
    if lag is None:
        return []
    late = f"99% of the requests were sent within {show_seconds(lag['p99_s'])} of their due time"
    if lag["kept_up"] is not False:
        return [Paragraph(f"{late}, all within {show_seconds(lag['max_s'])}.")]
    effect = "so the latencies below are too low."
    if not all(row["is_healthy"] for row in clients):
        effect = "and the client read events late, so the latencies below are the client's, and can be far too high."
    return [
        Paragraph(
            f"The load generator fell behind: {late}, and {show_share(lag['late_share'])} were more than "
            f"{show_seconds(lag['tolerance_s'])} late. The engine received less load than specified, {effect} Measured "
            "from the due time, TTFT is p50 "
            f"{show_seconds(lag['due_ttft_p50_s'])} and p99 {show_seconds(lag['due_ttft_p99_s'])}.",
            is_warning=True,
        )
    ]


def judge_clients(clients: list[Row]) -> list[Block]:
    """Warn if the client's event loop delayed events by a sizeable share of the latencies; reports the worst worker."""
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
            f"The client was slow to read events: worker {worst['worker']} delayed them by p50 "
            f"{show_seconds(worst['p50_s'])}, p99 {show_seconds(worst['p99_s'])} ({' and '.join(shares)}), and at "
            f"most {show_seconds(worst['max_s'])}, so latencies are too high. Run the client on a machine with free "
            "cores.",
            is_warning=True,
        )
    ]


def _judge_engine(saturation: Row | None) -> list[Block]:
    if saturation is None or saturation["arrival"] == "all_at_once":
        return []
    if saturation["is_saturated"] is None:
        return [Paragraph("The run is too short to detect saturation: at least 50 requests must be sent.")]
    if not saturation["is_saturated"]:
        return [Paragraph("The engine kept up with the load that it received: requests in flight did not accumulate.")]
    return [
        Paragraph(
            "The engine was saturated: requests in flight grew by "
            f"{show_rate(saturation['in_flight_growth_per_s'])}, with "
            f"{show_rate(saturation['offered_requests_per_s'], 'requests')} offered and "
            f"{show_rate(saturation['finished_requests_per_s'], 'requests')} finished. Latencies therefore depend "
            "on the length of the run: a longer run would show higher ones.",
            is_warning=True,
        )
    ]


def judge_throughput(summary: Row) -> list[Block]:
    """Warn if no answer finished in the measured interval, because answers took longer than sending."""
    if summary["requests_per_s"] is not None or not summary["measured_requests"]:
        return []
    return [
        Paragraph(
            "The run has no throughput: no answer finished between warm-up and cool-down, because answers take "
            "longer than sending. Send for longer, or shorten warm-up and cool-down.",
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
    columns = (Column("metric", 0), *named, Column("gaps", -1, show_value))
    cells = ("ITL", *(row["value_s"] for row in gaps), gaps[0]["gaps"])
    return [tabulate("Inter-token latency", columns, [cells])]
