"""The page of a benchmark without loads: which configuration to run, by quality, cost and speed over repeats.

With a single configuration, it shows the noise: how much equal runs differ.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

from assayline.benchmark.frontier import count_prompts_to_decide
from assayline.benchmark.result import SHOWN, Measured
from assayline.benchmark.suite import shorten_model
from assayline.comparison.benchmarks import read_noise as read_noise_rows
from assayline.report.charts import choose_unit, draw_curve, draw_frontier, draw_points
from assayline.report.compared import tabulate_comparisons
from assayline.report.document import Chart, Column, Figure, Part, Section, make_section, tabulate
from assayline.report.measures import head, measured, spread, valued
from assayline.store.database import Connection, Row, read_rows
from assayline.words import (
    DASH,
    count,
    name_metric,
    show_change,
    show_metric,
    show_money,
    show_name,
    show_note,
    show_number,
    show_points,
    show_range,
    show_rate,
    show_seconds,
    show_share,
    show_value,
)

FIELD_STARTS = re.compile(r", (?=(?:\w+\.)*\w+=)")
FRONTIER = "Quality against cost"


def show_label(label: str) -> str:
    """Format `engine.max_concurrency=32, model=models/a` as `max concurrency 32, model a`."""
    words = []
    for field, equals, value in (part.partition("=") for part in FIELD_STARTS.split(label)):
        name = field.rsplit(".", 1)[-1].replace("_", " ")
        shown = shorten_model(value) if name == "model" else value
        words.append(f"{name} {shown}" if equals else field)
    return ", ".join(words)


CONFIGURATION = Column("configuration", lambda row: show_label(row["configuration"]), show_name)
MEDIANS = (
    CONFIGURATION,
    Column("metric", lambda row: SHOWN[row["metric"]]),
    Column("repeats", "repeats", show_value),
    valued("median", "median_value"),
    valued("lowest", "lowest_value"),
    valued("highest", "highest_value"),
)
VERDICTS = {"baseline": "baseline", "pass": "keeps the limit", "fail": "worse", "inconclusive": "open", None: ""}


def _say_decision(row: Row) -> str:
    verdict = "beyond the limit" if row["verdict"] == "fail" and row["kl"] is not None else VERDICTS[row["verdict"]]
    words = [verdict, "cheapest that keeps it" if row["is_best"] and row["verdict"] == "pass" else ""]
    return ", ".join(filter(None, [*words, "dominated" if row["is_dominated"] else ""]))


def _show_cost(row: Row) -> str:
    cost, unit = row["cost"], str(row["cost_unit"]).partition("/")[0]
    return DASH if cost is None else show_seconds(cost) if unit == "s" else show_money(cost, unit)


def _is_by_kl(row: Row) -> bool:
    return bool(row["quality"] == "kl")


def _name_unit(row: Row) -> str:
    """Name the denominator of the cost."""
    return "million output tokens" if _is_by_kl(row) else "correct answer"


def _show_kl(row: Row) -> str:
    ends = show_range(show_value(row["kl_low"]), show_value(row["kl_high"]))
    times = f"{show_value(row['kl_ratio'])} times what the baseline differs from itself"
    return f"{show_value(row['kl'])} nats a token (95%: {ends}), typically {times}"


def _of_others(row: Row, key: str) -> object:
    """Return a value that the baseline has none of."""
    return None if row["verdict"] == "baseline" else row[key]


QUALITY = (
    CONFIGURATION,
    *spread("kl (nats/token)", "kl", show_value),
    Column("times the floor", "kl_ratio", show_value),
    *spread("recovery", "recovery"),
    Column("accuracy", "accuracy", show_share, is_wide=True),
    Column("difference", partial(_of_others, key="difference"), show_points, is_wide=True),
    Column("95% interval", ("difference_low", "difference_high"), show_points, is_wide=True),
    Column("noise floor", lambda row: show_points(row["accuracy_noise_floor"]).lstrip("+"), show_number, is_wide=True),
    Column("worst task", partial(_of_others, key="worst_task"), is_wide=True),
    Column("its recovery", partial(_of_others, key="worst_recovery"), show_share, is_wide=True),
    Column("cut off", "truncated_share", show_share, is_wide=True),
)
DECISION = (
    Column("decision", _say_decision),
    Column("", lambda row: f"Not measured: {row['obstacle']}" if row["obstacle"] else "", show_note),
)
SPEEDS = (
    CONFIGURATION,
    *measured("output_tokens_per_s", "good_requests_per_s", "ttft_p95_s", "tpot_p95_s"),
    Column("KV cache (tokens)", "kv_cache_tokens", show_value),
    *measured("load_s"),
    Column("energy per output token (J)", "energy_per_output_token_joules", show_value),
    *measured("cost_per_million_output_tokens"),
    Column("repeats", "repeats", show_value),
)


def _list_measured(measured: Sequence[Measured], metric: str) -> list[Measured]:
    """Return the configurations that a metric was measured of."""
    return [one for one in measured if metric in one.metrics and one.metrics[metric]["repeats"]]


def say_best(measured: Sequence[Measured]) -> str:
    """Say which configuration has the most output tokens/s, by how much, and whether it is more than noise."""
    metric = "output_tokens_per_s"
    known = _list_measured(measured, metric)
    if len(known) < 2:
        return ""
    values = {one.label: one.metrics[metric] for one in known}
    known.sort(key=lambda one: values[one.label]["median_value"], reverse=True)
    first, second, last = known[0], known[1], known[-1]
    ahead = [f"{_say_ratio(values[first.label], values[second.label])} {show_label(second.label)}, the next"]
    if last is not second:
        ahead.append(f"{_say_ratio(values[first.label], values[last.label])} {show_label(last.label)}, the lowest")
    compared = second if metric in second.comparisons else first
    doubt = ""
    if compared.references.get(metric) in (first.label, second.label):
        doubt = {
            "too_few": "Whether that is more than noise is unknown: three repeats each allow a test.",
            "unclear": "The next is not shown to differ by more than noise and the limit; more repeats may.",
            "same": "The next is equivalent within the limit.",
        }.get(compared.comparisons[metric].name_change(), "That is more than noise.")
    value = show_metric(values[first.label]["median_value"], values[first.label]["unit"])
    return f"{show_label(first.label)} has the most {SHOWN[metric]}: {value}, {' and '.join(ahead)}. {doubt}".strip()


def _say_ratio(one: Row, other: Row) -> str:
    ratio = one["median_value"] / other["median_value"] if other["median_value"] else None
    if ratio is None or ratio >= 2:
        return f"{show_change(ratio and ratio - 1)} that of"
    return f"{show_change(ratio - 1).lstrip('+')} more than"


def say_decision(frontier: Sequence[Row], limit: float | None) -> list[str]:
    """Say which configuration is the cheapest that is shown to keep the limit, why, and what would decide the others.

    `limit` is None if tasks have different ones.
    """
    base = next((row for row in frontier if row["verdict"] == "baseline"), None)
    if base is None or len(frontier) < 2:
        return []
    best = next((row for row in frontier if row["is_best"]), None)
    is_by_kl = _is_by_kl(base)
    within = "the limit" if limit is None or is_by_kl else f"{100 * limit:g} point{'s' * (limit != 0.01)}"
    name = show_label(base["configuration"])
    sentences = []
    if best is not None and best is not base:
        less = best["cost"] / base["cost"] - 1
        what = "takes" if best["cost_unit"].startswith("s/") else "costs"
        amount = f"{abs(less):.0%} less {'time ' if what == 'takes' else ''}per {_name_unit(best)} than {name}"
        kept = f"its accuracy is not lower by more than {within} (95%: {_show_ends(best)})"
        if is_by_kl:
            kept = f"its probabilities are shown within the limit: {_show_kl(best)}"
        sentences.append(f"{show_label(best['configuration'])} {what} {amount}{_say_overlap(best, base)}; {kept}.")
    elif best is not None:
        of = "probabilities" if is_by_kl else "accuracy"
        sentences.append(f"No cheaper configuration than {name} is shown to keep within {within} of its {of}.")
    sentences += [
        f"{show_label(row['configuration'])} is shown beyond the limit: {_show_kl(row)}."
        if is_by_kl
        else f"{show_label(row['configuration'])} is shown to be worse: recovery {show_share(row['recovery'])} "
        f"(95%: {show_range(show_share(row['recovery_low']), show_share(row['recovery_high']))})."
        for row in frontier
        if row["verdict"] == "fail" and _is_cheaper(row, best or base)
    ]
    cheaper = [
        row
        for row in frontier
        if row["verdict"] == "inconclusive" and _is_cheaper(row, best or base) and _has_ends(row)
    ]
    for row in cheaper:
        if is_by_kl:
            found = f"is cheaper, and shown neither within the limit nor beyond it: {_show_kl(row)}"
            more = f"more answers (gate.reread.prompts, now {row['kl_prompts']:,}) may decide"
            sentences.append(f"{show_label(row['configuration'])} {found}; {more}.")
            continue
        ends, family = (row["difference_low"], row["difference_high"]), sum(map(_has_ends, frontier))
        needed = limit and count_prompts_to_decide(row["prompts"], *ends, limit, family)
        more = (
            f"; if it is equal, about {needed:,} prompts (now {row['prompts']:,}) show it with 80% power"
            if needed
            else ""
        )
        sentences.append(
            f"{show_label(row['configuration'])} is cheaper, and not shown to be within {within} of {name} "
            f"(95%: {_show_ends(row)}){more}. More repeats help only if answers to a prompt differ between repeats."
        )
    return sentences


def _has_ends(row: Row) -> bool:
    return row["difference_low"] is not None or row["kl_low"] is not None


def _is_cheaper(row: Row, other: Row) -> bool:
    one, two = row["cost"], other["cost"]
    return one is not None and (two is None or one < two)


def _show_ends(row: Row) -> str:
    return show_range(show_points(row["difference_low"]), show_points(row["difference_high"]))


def _say_overlap(one: Row, other: Row) -> str:
    """Say whether the costs of the repeats lie apart, which is noise in 1 of 126 cases for five equal repeats each."""
    if min(one["repeats"], other["repeats"]) < 5:
        return " (fewer than five repeats each, so it may be noise)"
    return " in every repeat" if one["cost_high"] < other["cost_low"] else " (repeats overlap, so it may be noise)"


def choose_comparison_figures(measured: Sequence[Measured], frontier: Sequence[Row]) -> list[Figure | None]:
    """Count configurations and repeats, and name the best."""
    best = next((row for row in frontier if row["is_best"]), None)
    repeats = sorted({one.repeats for one in measured}) or [row["repeats"] for row in frontier[:1]] or [0]
    ends = " to ".join(f"{number:,}" for number in dict.fromkeys((repeats[0], repeats[-1])))
    return [
        Figure(
            "Cheapest that keeps the limit",
            show_label(best["configuration"]),
            f"{_show_cost(best)} per {_name_unit(best)}",
        )
        if best is not None and len(frontier) > 1
        else None,
        Figure("Configurations", f"{max(len(measured), len(frontier)):,}"),
        Figure("Repeats", ends, "per configuration"),
    ]


def describe_frontier(frontier: Sequence[Row]) -> Section | None:
    """Build the section on quality and cost."""
    quality = "kl" if _is_by_kl(frontier[0]) else "recovery"
    drawn = [
        {**row, "name": show_label(row["configuration"])}
        for row in frontier
        if row[quality] is not None and row["cost"] is not None
    ]
    unit = str(drawn[0]["cost_unit"]) if drawn else ""
    cost = Column(f"cost per {_name_unit(frontier[0])}", _show_cost, show_number)
    free = " Without a price, the cost is the time of answering. Configurations on different numbers of GPUs need one."
    return make_section(
        "frontier",
        FRONTIER,
        Chart(FRONTIER, FRONTIER_WORDS[quality], draw_frontier(drawn, unit, quality)) if len(drawn) > 1 else None,
        tabulate("Quality and cost", [*QUALITY, cost, *DECISION], frontier),
        QUALITY_WORDS[quality] + free * unit.startswith("s/"),
        tabulate("Speed and cost", SPEEDS, frontier, is_folded=True),
    )


_CHART_WORDS = (
    "left is cheaper. Lines are the 95% interval of {}, and the range of the cost over repeats. Grey configurations "
    "are dominated: another has at {} at no higher cost."
)
FRONTIER_WORDS = {
    "recovery": f"Up is better, {_CHART_WORDS.format('recovery', 'least their recovery')}",
    "kl": f"Down is closer to the baseline, whose kl is the floor; {_CHART_WORDS.format('kl', 'most their kl')}",
}
QUALITY_WORDS = {
    "recovery": "Recovery is the accuracy as a share of the baseline's, paired by prompt. A configuration keeps the "
    "limit if the interval of its difference does; these intervals hold together with 95%, because the cheapest "
    "configuration is chosen. It is worse if a drop beyond gate.max_accuracy_drop is shown. The noise floor is the "
    "difference that two equal runs seldom exceed.",
    "kl": "kl is the divergence of an engine's probabilities from the baseline's, over the baseline's answers; the "
    "floor is the baseline's from itself, in other batches. A configuration keeps the limit if it is shown within "
    "gate.reread.max_kl, or three times the floor; these verdicts hold together with 95%. Other probabilities are not "
    "worse ones: accuracy shows that.",
}
SPEED_WORDS = (
    "Changes are ratios of geometric means over repeats. Worse and better are shown beyond the limit of "
    "gate.max_slowdown or max_accuracy_drop, or beyond 2%. With the best of a metric, p is multiplied by the "
    "number of its rivals; the metrics of max_slowdown are one family of tests (Holm)."
)


def describe_speed(measured: Sequence[Measured]) -> Section | None:
    """Build the section on speed: each configuration against the best of a metric, or the baseline."""
    compared = [
        ((SHOWN[metric], show_label(one.label), show_label(one.references[metric])), found, found.name_change())
        for metric in SHOWN
        for one in measured
        if (found := one.comparisons.get(metric))
    ]
    names = ("metric", "configuration", "compared with")
    alone = "There is nothing to compare: no second configuration has a usable run."
    return make_section(
        "speed",
        "Speed",
        _draw_curve(measured),
        tabulate_comparisons("Compared with the best, or the baseline", names, compared),
        (SPEED_WORDS if compared else alone) if measured else None,
    )


def describe_repeats(measured: Sequence[Measured]) -> Section | None:
    """Build the section on the repeats."""
    if not measured:
        return None
    medians = (
        {**one.metrics[metric], "configuration": one.label, "metric": metric}
        for metric in SHOWN
        for one in _list_measured(measured, metric)
    )
    return make_section(
        "repeats",
        "Repeats",
        "Each dot is a run; the line is the median of its repeats.",
        (_draw(metric, _list_measured(measured, metric)) for metric in SHOWN),
        tabulate("Median and range over repeats", MEDIANS, medians, is_folded=True),
    )


def _draw_curve(measured: Sequence[Measured]) -> Chart | None:
    """Draw latency against throughput if one numeric field is varied."""
    found: dict[float, Row] = {}
    for one in measured:
        field, _, value = one.label.partition("=")
        try:
            place = float(value)
        except ValueError:
            return None
        medians = {metric: row["median_value"] for metric, row in one.metrics.items()}
        if field == measured[0].label.partition("=")[0] and None not in map(medians.get, CURVE):
            found[place] = {**medians, "label": value, "is_marked": False}
    if len(found) < 3:
        return None
    named = show_label(measured[0].label.partition("=")[0] + "=").strip()
    said = f" Medians over repeats; labels are values of {named}, in the order of which the line runs."
    return draw_latency("Latency against throughput", [found[place] for place in sorted(found)], LATENCIES, said=said)


def draw_latency(
    title: str, points: Sequence[Row], columns: Mapping[str, str], knee: Row | None = None, said: str = ""
) -> Chart | None:
    """Draw latencies (`columns`: line name by column) over the throughput, with the knee."""
    shown = [point for point in points if any(point[column] is not None for column in columns)]
    if not shown:
        return None
    unit, factor = choose_unit([point[column] for point in shown for column in columns if point[column] is not None])
    rows = [
        {"x": point["requests_per_s"], "y": point[column] * factor, "line": line, **mark(point)}
        for point in shown
        for column, line in columns.items()
        if point[column] is not None
    ]
    titles, is_small = ("requests per second answered", unit), len(columns) == 1
    at = knee["requests_per_s"] if knee else None
    drawn = draw_curve(rows, titles, lines=list(columns.values()), knee=at, is_small=is_small)
    column = next(iter(columns))
    ordered = sorted(shown, key=lambda point: point["requests_per_s"])
    ends = [f"{show_seconds(one[column])} at {show_rate(one['requests_per_s'], 'requests')}" for one in ordered]
    at_knee = f", {show_seconds(knee[column])} at the knee, {knee['label']}" if knee else ""
    what = "99th percentile" if "p99" in column else "Median"
    return Chart(title, f"{what} {ends[0]}{at_knee}, and {ends[-1]}.{said}", drawn, is_small)


def mark(point: Row) -> Row:
    """Return the label of a point of a curve, and whether it has a ring."""
    return {"label": point["label"], "is_marked": point["is_marked"]}


CURVE = ("requests_per_s", "e2e_p50_s", "e2e_p95_s")
LATENCIES = {metric: name_metric(metric) for metric in CURVE[1:]}


def _draw(metric: str, measured: Sequence[Measured]) -> Part:
    found = {show_label(one.label): one.metrics[metric] for one in measured}
    if not found:
        return None
    unit, medians = next(iter(found.values()))["unit"], {label: row["median_value"] for label, row in found.items()}
    points = [{"name": label, "value": value} for label, row in found.items() for value in row["values"]]
    told = "; ".join(f"{label}: {show_metric(value, unit)}" for label, value in medians.items())
    return Chart(head(SHOWN[metric]), f"Medians: {told}.", draw_points(points, unit, medians=medians), is_small=True)


def say_comparisons(measured: Sequence[Measured], frontier: Sequence[Row], limit: float | None) -> list[str]:
    """Return the sentences of the headline: the decision, and which configuration is the fastest."""
    if max(len(measured), len(frontier)) < 2:
        repeats = measured[0].repeats if measured else 0
        return [f"{count(repeats, 'repeat')} of one configuration, so there is nothing to compare."]
    missing = [show_label(row["configuration"]) for row in frontier if row["obstacle"]]
    lacks = [f"{', '.join(missing)}: not measured; the table has the reason."] if missing else []
    found = [*say_decision(frontier, limit), say_best(measured)]
    if not any(row["difference"] or row["kl"] is not None for row in frontier):  # quality is equal: speed decides
        found = found[-1:] + found[:-1]
    return [*filter(None, found), *lacks] or ["No two configurations have a metric in common."]


def read_noise(connection: Connection, benchmark_id: str) -> list[Row]:
    """Read the noise of a benchmark's only configuration, by metric; empty if too few runs count, or a newer one has
    measured it.

    Each row has the numbers of prompts, and of those whose text or score differs between runs.
    """
    metrics = {row["metric"]: row for row in read_noise_rows(connection, "benchmark_id = ?", benchmark_id)}
    (flips,) = read_rows(connection, _FLIPS, benchmark_id)
    return [{**metrics[metric], **flips} for metric in SHOWN if metric in metrics]


_FLIPS = """
    select
        count(*) as prompts,
        count(*) filter (flip_share > 0) as texts,
        count(*) filter (score_flip_share > 0) as scores,
        count(score_flip_share) as scored
    from noise_prompt((select list(run_id) from noise_run where benchmark_id = ?))
"""


def _relate(column: str) -> Column:
    """Return a column for a value as a percentage of the mean."""

    def relate(row: Row) -> float | None:
        return None if row[column] is None or not row["mean"] else row[column] / abs(row["mean"])

    header = {"run_sd": "SD of runs", "engine_sd": "SD of engines", "total_sd": "SD in total"}
    return Column(header.get(column, "noise floor"), relate, show_share)


NOISE = (
    Column("metric", lambda row: SHOWN[row["metric"]]),
    valued("mean", "mean"),
    *map(_relate, ("run_sd", "engine_sd", "total_sd", "noise_floor")),
)


def say_noise(noise: Sequence[Row]) -> list[str]:
    """Return the number of runs and engines, and how many prompts differ between equal runs."""
    row = noise[0]
    texts = f"Answers to {row['texts']:,} of {count(row['prompts'], 'prompt')} differ between these equal runs"
    scores = f", and the scores of {row['scores']:,}" if row["scored"] else ""
    return [f"{count(row['runs'], 'equal run')} on {count(row['engines'], 'engine')}.", f"{texts}{scores}."]


def choose_noise_figures(noise: Sequence[Row]) -> list[Figure | None]:
    """Return the key figures of a measurement."""
    first = noise[0]
    floors = [
        Figure(f"Noise floor, {SHOWN[row['metric']]}", show_share(row["noise_floor"] / abs(row["mean"])))
        for row in noise[:3]
        if row["noise_floor"] is not None and row["mean"]
    ]
    return [
        Figure("Equal runs", f"{first['runs']:,}", f"on {count(first['engines'], 'engine')}"),
        Figure("Answers that differ", f"{first['texts']:,}", f"of {count(first['prompts'], 'prompt')}"),
        *floors,
    ]


def describe_noise(noise: Sequence[Row]) -> Section | None:
    """Build the section on noise."""
    return make_section(
        "noise",
        "Noise",
        tabulate("Noise, relative to the mean", NOISE, noise),
        "SD is a standard deviation: of runs on one engine, and what a new engine adds. With 95% confidence, two "
        "equal runs of one session differ by more than the noise floor in at most 5% of pairs.",
    )
