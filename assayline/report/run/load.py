"""The section about a run's load: what was to be sent when, how much of it was good, and who did not keep up."""

from assayline.report.document import Block, Paragraph, Section
from assayline.report.run.rows import LoadRows, ReportRows
from assayline.report.sweep.goodput import say_limits
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import count, name_percentile, show_number, show_rate, show_seconds, show_share, show_value

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
    section.blocks.append(Paragraph(_say_pattern(rows.load.load)))
    section.blocks.append(Paragraph(_say_end(rows.load, rows.summary)))
    if windows := _say_windows(rows.load):
        section.blocks.append(Paragraph(windows))
    section.blocks.extend(_judge_generator(rows.load.send_lag))
    section.blocks.extend(judge_clients(rows.load.clients))
    section.blocks.extend(_judge_engine(rows.load.saturation))
    section.blocks.extend(judge_throughput(rows.summary))
    section.blocks.extend(_tabulate_goodput(rows.load.goodput))
    section.blocks.extend(_tabulate_gaps(rows.load.gaps))
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
    late = f"99 % of the requests were sent within {show_seconds(lag['p99_s'])} of when they were due"
    if lag["kept_up"] is not False:
        return [Paragraph(f"{late}, all within {show_seconds(lag['max_s'])}.")]
    return [
        Paragraph(
            f"The generator did not keep up: {late}, and {show_share(lag['late_share'])} were later than "
            f"{show_seconds(lag['tolerance_s'])}. The engine got less than was asked for, and the latencies below "
            "flatter it. Counted from when requests were due, half of the first tokens came within "
            f"{show_seconds(lag['due_ttft_p50_s'])} and 99 % within {show_seconds(lag['due_ttft_p99_s'])}.",
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
