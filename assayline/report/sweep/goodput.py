"""The section of a sweep's report about goodput: how many of the requests that were offered were good enough."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from assayline.report.document import Chart, Paragraph, Section
from assayline.report.sweep.charts import draw_good_share, draw_goodput
from assayline.store.database import Row
from assayline.words import show_rate, show_seconds

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
