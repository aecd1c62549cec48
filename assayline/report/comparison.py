"""The report of a benchmark without loads: configurations compared with the first one over repeats."""

from collections.abc import Sequence

from assayline.benchmark.result import SHOWN, Measured
from assayline.report.charts import draw_repeats
from assayline.report.document import Block, Chart, Column, Figure, Paragraph, Section, Table, tabulate
from assayline.store.database import Row
from assayline.words import count, show_change, show_name, show_number, show_range, show_value

MOST_SENTENCES = 6
APART = ("better", "worse")


def _show_interval(row: Row) -> str:
    """Format the interval of the ratio as a change. It is computed on logarithms, so no decrease exceeds 100%."""
    return show_range(*(show_change(None if row[end] is None else row[end] - 1) for end in ("ratio_low", "ratio_high")))


MEDIANS = (
    Column("configuration", "label", show_name),
    Column("metric", "metric"),
    Column("repeats", "repeats", show_value),
    Column("median", "median_value", show_value),
    Column("lowest", "lowest_value", show_value),
    Column("highest", "highest_value", show_value),
    Column("unit", "unit"),
)
COMPARISONS = (
    Column("configuration", "label", show_name),
    Column("metric", "metric"),
    Column("change", lambda row: show_change(None if row["ratio"] is None else row["ratio"] - 1), show_number),
    Column("95% CI", _show_interval, show_number),
    Column("p at the limit", "beyond_p", show_value),
    Column("verdict", lambda row: row["verdict"].replace("_", " "), show_name),
)


def tabulate_medians(measured: Sequence[Measured], is_folded: bool = False) -> Table:
    """Tabulate one row per configuration and metric with a value."""
    rows = (
        {**one.metrics[metric], "label": one.label, "metric": metric}
        for metric in SHOWN
        for one in measured
        if metric in one.metrics and one.metrics[metric]["repeats"]
    )
    return tabulate("Median and range over repeats", MEDIANS, rows, is_folded)


def tabulate_comparisons(measured: Sequence[Measured]) -> Table:
    """Tabulate one row per metric and configuration after the first."""
    rows = (
        {**one.comparisons[metric], "label": one.label, "metric": metric}
        for one in measured
        for metric in SHOWN
        if metric in one.comparisons
    )
    return tabulate(f"Compared with {measured[0].label}", COMPARISONS, rows)


def list_judged(one: Measured) -> list[Row]:
    """Return the comparisons of the metrics that have a limit (one family of tests), or else of all shown metrics."""
    rows = [one.comparisons[metric] for metric in one.comparisons if one.comparisons[metric]["in_family"]]
    return rows or [one.comparisons[metric] for metric in SHOWN if metric in one.comparisons]


def say_comparisons(measured: Sequence[Measured]) -> list[str]:
    """Return a sentence per configuration after the first: its significant differences."""
    first, others = measured[0], measured[1:]
    if not others:
        return [f"{count(first.repeats, 'repeat')} of one configuration, so there is nothing to compare."]
    sentences = [_say_comparison(one, first) for one in others[:MOST_SENTENCES]]
    more = len(others) - MOST_SENTENCES
    return [*sentences, f"{count(more, 'more configuration')} below."] if more > 0 else sentences


def _say_comparison(one: Measured, first: Measured) -> str:
    field, space, value = first.label.rpartition(" ")
    is_shared = space and one.label.startswith(f"{field} ")
    pair = f"{one.label} vs {value if is_shared else first.label}"
    repeats = (
        f"{count(one.repeats, 'repeat')} each"
        if one.repeats == first.repeats
        else f"{count(one.repeats, 'repeat')} vs {first.repeats}"
    )
    judged = list_judged(one)
    if not judged or all(row["verdict"] == "too_few" for row in judged):
        return f"{pair}: too few repeats for a comparison ({repeats}); at least five of each are needed."
    apart = [f"{row['metric']} {row['verdict']}, {_say_change(row)}" for row in judged if row["verdict"] in APART]
    same = (
        "equivalent within the limits"
        if all(row["verdict"] == "same" for row in judged)
        else "no significant difference"
    )
    return f"{pair}: {'; '.join(apart) or same}; {repeats}."


def _say_change(row: Row) -> str:
    span = _show_interval(row)
    change = row["relative_shift"] if row["ratio"] is None else row["ratio"] - 1
    return show_change(change) + (f" ({span})" if span else "")


def choose_comparison_figures(measured: Sequence[Measured]) -> list[Figure]:
    """Count the comparisons, and the significant ones."""
    judged = [row for one in measured[1:] for row in list_judged(one)]
    apart = sum(row["verdict"] in APART for row in judged)
    repeats = sorted({one.repeats for one in measured})
    return [
        Figure("Configurations", f"{len(measured):,}"),
        Figure(
            "Repeats",
            " to ".join(f"{number:,}" for number in dict.fromkeys((repeats[0], repeats[-1]))),
            "per configuration",
        ),
        Figure("Significant", f"{apart:,} of {len(judged):,}", "comparisons, beyond chance"),
    ]


def describe_comparisons(measured: Sequence[Measured], values: Sequence[Row]) -> list[Section]:
    """Build the verdicts, a chart of the repeats, and the medians. `values` are rows of run_metric with config_id."""
    verdicts = Section("verdicts", "Verdicts")
    if any(one.comparisons for one in measured):
        verdicts.add(tabulate_comparisons(measured))
        verdicts.say(
            "A change is the ratio to the first configuration, estimated on logarithms over all pairs of repeats. "
            "Worse and better are shown beyond the limit of gate.max_slowdown or max_accuracy_drop, or beyond 2%. The "
            "metrics of max_slowdown are one family of tests (Holm); of twenty others, expect one false positive."
        )
    else:
        verdicts.say("There is nothing to compare: no second configuration has a usable run.")
    repeats = Section("repeats", "Repeats", [Paragraph("Each dot is a run; the line is the median of its repeats.")])
    for metric in SHOWN:
        rows = [row for row in values if row["metric"] == metric]
        if rows:
            repeats.add(_draw(metric, rows, measured))
    repeats.add(tabulate_medians(measured, is_folded=True))
    return [verdicts, repeats]


def _draw(metric: str, rows: Sequence[Row], measured: Sequence[Measured]) -> Block:
    dots = {one.label: [row["value"] for row in rows if row["config_id"] == one.config_id] for one in measured}
    medians = {
        one.label: one.metrics[metric]["median_value"]
        for one in measured
        if dots[one.label] and metric in one.metrics and one.metrics[metric]["repeats"]
    }
    told = "; ".join(f"{label} {show_value(value)}" for label, value in medians.items())
    return Chart(metric, f"Medians: {told}.", draw_repeats(dots, medians, rows[0]["unit"]), is_small=True)
