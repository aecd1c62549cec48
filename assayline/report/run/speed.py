"""Report sections about latency, load, and throughput over time."""

from functools import partial

from assayline.report.charts import HEIGHT, LOW, MARKED_EVENTS, draw_distribution, draw_timeline
from assayline.report.document import Chart, Column, Part, Section, make_section, tabulate, warn
from assayline.report.measures import measured, show_interval
from assayline.report.run.rows import RunRows, list_percentiles
from assayline.report.sweep import say_limits
from assayline.store.database import Row
from assayline.store.measure import PERCENTILES
from assayline.words import (
    count,
    name_metric,
    show_name,
    show_number,
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
SLOWEST = 5
TURNS = 50


def _show_percentile(name: str, rows: dict[str, Row]) -> str:
    span = show_interval(rows[name])
    return show_seconds(rows[name]["value"]) + (f" ({span})" if span else "")


def describe_latency(run: RunRows) -> Section | None:
    """Build the latency section: percentiles with intervals, and distributions; None without times."""
    percentiles = list_percentiles(run.values, *LATENCIES)
    if not percentiles:
        return None
    bins = run.query("latency_histogram")
    turns = run.query("turn_latency", "turns")[:TURNS]
    return make_section(
        "latency",
        "Latency",
        "Time to first token includes queueing: offline, requests are sent before the engine has room for them. "
        "The 95% intervals allow for requests that wait for each other, and are missing if too few are independent; "
        "they cover this run's requests, not variation between runs.",
        tabulate("Latency percentiles", PERCENTILE_COLUMNS, percentiles),
        (_draw(rows, bins) for rows in percentiles),
        "Conversations were sent turn by turn: each prompt starts with the earlier turns and the model's "
        "answers to them, which the prefix cache may still hold."
        if turns
        else None,
        tabulate("Conversation turns", TURN_COLUMNS, turns),
        tabulate("Slowest requests", SLOWEST_COLUMNS, run.read(_SLOWEST, SLOWEST), is_folded=True),
    )


PERCENTILE_COLUMNS = (
    Column("latency", lambda rows: name_metric(rows["p50"]["metric"])),
    *(Column(name, partial(_show_percentile, name), show_number) for name in PERCENTILES),
    Column("n", lambda rows: rows["p50"]["n"] or 0, show_value),
)


def _draw(percentiles: dict[str, Row], bins: list[Row]) -> Part:
    """Draw the distribution of a latency."""
    metric = percentiles["p50"]["metric"]
    name, of_metric = name_metric(metric), [row for row in bins if row["metric"] == metric]
    if not of_metric:
        return f"{name} is not defined for any request of this run."
    p50, p99 = (show_seconds(percentiles[end]["value"]) for end in ("p50", "p99"))
    described = (
        f"{name}, the {LATENCIES[metric]}, of {count(percentiles['p50']['n'], 'request')}: p50 {p50}, p99 {p99}. The "
        "pale last bar holds all longer values."
    )
    return Chart(name, described, draw_distribution(of_metric, percentiles), is_small=True)


def describe_time(run: RunRows) -> Section | None:
    """Build the section of throughput and concurrency over time, with engine events; None without times."""
    activity = run.query("activity")
    if not activity:
        return None
    stretches = run.read(_STRETCHES) if "loads" in run.facts else []
    moments = {event["at_s"] for event in run.events if event["event"] in MARKED_EVENTS}
    marked = f"; lines mark {count(len(moments), 'moment')} at which engines changed" if moments else ""
    if stretches:
        marked += "; dotted lines mark the measured interval"
    slice_s = show_seconds(activity[0]["ends_at_s"] - activity[0]["begins_at_s"])
    windows = [
        {
            "from": engine["work_began_at_s"],
            "until": engine["work_ended_at_s"],
            "value": engine["last_max_concurrency"],
            "name": f"{engine['worker']}, engine {engine['engine_generation']}",
        }
        for engine in run.engines
        if engine["work_began_at_s"] is not None and engine["last_max_concurrency"] is not None
    ]
    charts = []
    for title, column, axis, words in TIMELINES:
        of_run = SAMPLED not in words
        slices = [
            {"from": row["begins_at_s"], "until": row["ends_at_s"], "value": row[column]}
            for row in activity
            if row[column] is not None
        ]
        if of_run or any(one["value"] for one in slices):
            drawn = draw_timeline(
                slices,
                axis,
                run.events,
                span=(activity[0]["begins_at_s"], activity[-1]["ends_at_s"]),
                stretches=stretches if of_run else (),
                windows=windows if column == IN_FLIGHT else (),
                is_share=column.endswith("_share"),
                height=HEIGHT if of_run else LOW,
            )
            charts.append(Chart(title, words.format(slices=f"in slices of {slice_s}", marked=marked), drawn))
    unknown = "The engine sent no telemetry, so batch sizes are unknown."
    return make_section("time", "Over time", charts, None if run.summary["engine_steps"] else unknown)


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


TURN_COLUMNS = (
    Column("turn", lambda row: f"{row['turn_index'] + 1}", show_number),
    Column("requests", "requests", show_value),
    Column("errors", "error_requests", show_value),
    Column("prompt tokens, mean", "mean_prompt_tokens", show_value),
    Column("cached", "cached_share", show_share),
    Column("output tokens, mean", "mean_output_tokens", show_value),
    *measured("ttft_p50_s", "ttft_p95_s", "e2e_p50_s", "e2e_p95_s"),
)
SLOWEST_COLUMNS = (
    Column("request", "request_id", show_name),
    *measured("e2e_s", "ttft_s"),
    Column("queue", "queue_s", show_seconds),
    Column("prompt tokens", "prompt_tokens", show_value),
    Column("output tokens", "output_tokens", show_value),
    Column("finish reason", "finish_reason"),
)
_SLOWEST = """
    select request_id, prompt_id, e2e_s, ttft_s, tpot_s, queue_s, prompt_tokens, output_tokens, finish_reason
    from request
    where run_id = ? and status = 'ok' and e2e_s is not null
    order by e2e_s desc, request_id
    limit ?
"""
_STRETCHES = """
    select * from load_stretch where run_id = ? and has_windows and stretch_s is not null order by begins_at_s
"""

PATTERNS = {
    "all_at_once": "all at once",
    "concurrency": "a closed loop",
    "constant": "at a constant rate",
    "poisson": "with Poisson arrivals",
    "trace": "at the times of a recorded trace",
}
GOODPUT = (
    Column("SLO", "slo"),
    Column("good requests", lambda row: f"{row['good_requests']:,} of {row['requests']:,}", show_number),
    Column("share", "good_share", show_share),
    *measured("good_requests_per_s", "good_output_tokens_per_s"),
)


def describe_load(run: RunRows) -> Section | None:
    """Build the load section, which tells a reader whether the latencies are valid; None for a run without a load."""
    loads = run.read("from loads where run_id = ?")
    if not loads:
        return None
    (load,), clients = loads, run.query("client_health")
    ends = run.read("from engine_events where run_id = ? and event = 'load_ended' order by at_s limit 1")
    slos = run.read(
        "select slo, metric, limit_s from slos where run_id = ? order by slo, metric <> 'ttft_s', metric <> 'tpot_s'"
    )
    return make_section(
        "load",
        "Load",
        _say_pattern(load),
        _say_end(ends, run.summary),
        _say_windows(load, run.summary),
        judge_generator(run, clients),
        judge_clients(clients),
        None if load["arrival"] in ("concurrency", "all_at_once") else _judge_engine(run),
        judge_throughput(run.summary),
        say_limits(slos) if slos else None,
        tabulate("Goodput", GOODPUT, (_read_goodput(run, slo) for slo in dict.fromkeys(row["slo"] for row in slos))),
        tabulate("Inter-token latency", PERCENTILE_COLUMNS, list_percentiles(run.values, "itl_s")),
    )


def _read_goodput(run: RunRows, slo: str) -> Row:
    names = "good_share", "good_requests_per_s", "good_output_tokens_per_s"
    return {
        "slo": slo,
        "requests": run.values["good_share mean", slo]["n"],
        "good_requests": run.value("good_requests", "total", slo),
        **{name: run.value(name, "mean", slo) for name in names},
    }


def _say_pattern(load: Row) -> str:
    if load["arrival"] == "concurrency":
        return f"Closed loop: {count(load['concurrency'], 'request')} in flight; each answer triggers the next request."
    rate = f", {show_rate(load['requests_per_s'], 'requests')}" if load["requests_per_s"] is not None else ""
    shape = f", burstiness {load['burstiness']:g}" if load["burstiness"] not in (None, 1) else ""
    return f"Open loop: requests were sent {PATTERNS[load['arrival']]}{rate}{shape}, independently of earlier answers."


def _say_end(ends: list[Row], summary: Row) -> str:
    if not ends:
        return "Every request of the prompt set was sent."
    unsent = summary["unsent_requests"]
    left = f"{count(unsent, 'request was', 'requests were')} not sent; they are excluded from errors and speed metrics."
    return f"{ends[0]['message']}{f' {left}' if unsent else ''}"


def _say_windows(load: Row, summary: Row) -> str:
    windows = [
        f"the {end} {show_seconds(load[column])}"
        for column, end in (("warmup_s", "first"), ("cooldown_s", "last"))
        if load[column]
    ]
    if not windows and load["arrival"] == "concurrency":
        measured_s, working_s = summary.get("measured_s"), summary.get("working_s")
        if measured_s is None or working_s is None or measured_s >= working_s:
            return ""
        return (
            f"Throughput is of the {show_seconds(measured_s)} in which every seat was taken; "
            f"{show_seconds(working_s - measured_s)} of ramp-up and drain are left out, and the metrics per attempted "
            "second count all of it."
        )
    if not windows:
        return ""
    return f"Requests sent in {' and '.join(windows)} are stored but excluded from latency and throughput."


def judge_generator(run: RunRows, clients: list[Row]) -> Part:
    """Warn if requests were sent late: less load lowers latencies, and a client that also reads late raises them."""
    if (lag_s := run.value("send_lag_s", "p99")) is None:
        return None
    late = f"99% of the requests were sent within {show_seconds(lag_s)} of their due time"
    if run.value("kept_up", "mean") in (None, True):
        return f"{late}, all within {show_seconds(run.value('send_lag_s', 'max'))}."
    ttfts = (show_seconds(run.value("due_ttft_s", end)) for end in ("p50", "p99"))
    effect = "so the latencies below are too low."
    if not all(row["is_healthy"] for row in clients):
        effect = "and the client read events late, so the latencies below are the client's, and can be far too high."
    return warn(
        f"The load generator fell behind: {late}, and {show_share(run.value('late_share', 'mean'))} were more than "
        f"{show_seconds(run.value('send_lag_tolerance_s', 'max'))} late. The engine received less load than "
        f"specified, {effect} Measured from the due time, TTFT is p50 {' and p99 '.join(ttfts)}."
    )


def judge_clients(clients: list[Row]) -> Part:
    """Warn if the client's event loop delayed events by a sizeable share of the latencies; reports the worst worker."""
    unhealthy = [row for row in clients if not row["is_healthy"]]
    if not unhealthy:
        return None
    worst = unhealthy[0]
    shares = [
        f"{show_share(worst[column])} of the median {name}"
        for column, name in (("ttft_share", "TTFT"), ("tpot_share", "TPOT"))
        if worst[column] is not None
    ]
    return warn(
        f"The client was slow to read events: worker {worst['worker']} delayed them by p50 "
        f"{show_seconds(worst['p50_s'])}, p99 {show_seconds(worst['p99_s'])} ({' and '.join(shares)}), and at "
        f"most {show_seconds(worst['max_s'])}, so latencies are too high. Run the client on a machine with free "
        "cores."
    )


def _judge_engine(run: RunRows) -> Part:
    is_saturated = run.value("is_saturated", "mean")
    if is_saturated is None:
        return "The run is too short to detect saturation: at least 50 requests must be sent."
    if not is_saturated:
        return "The engine kept up with the load that it received: requests in flight did not accumulate."
    rates = [show_rate(run.value(f"{name}_requests_per_s", "mean"), "requests") for name in ("offered", "finished")]
    growth = show_rate(run.value("in_flight_growth_per_s", "mean"))
    return warn(
        f"The engine was saturated: requests in flight grew by {growth}, with {rates[0]} offered and {rates[1]} "
        "finished. Latencies therefore depend on the length of the run: a longer run would show higher ones."
    )


def judge_throughput(summary: Row) -> Part:
    """Warn if no answer finished in the measured interval, because answers took longer than sending."""
    if summary["requests_per_s"] is not None or not summary["measured_requests"]:
        return None
    return warn(
        "The run has no throughput: no answer finished between warm-up and cool-down, because answers take "
        "longer than sending. Send for longer, or shorten warm-up and cool-down."
    )
