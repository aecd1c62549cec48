"""Headline, key figures, cost, and the description of a run."""

import json
from collections.abc import Sequence
from typing import Any

from assayline.report.document import Column, Figure, Quote, Section, tabulate
from assayline.report.run.rows import ReportRows, say_answered
from assayline.store.database import Row
from assayline.store.manifest import ENDED_WELL, IMPORTS
from assayline.words import (
    DASH,
    count,
    name_metric,
    show_known,
    show_money,
    show_number,
    show_range,
    show_rate,
    show_seconds,
    show_share,
    show_value,
)

SPEC_CHARACTERS = 6_000
FACTS = (Column("property", 0), Column("value", 1))
METRICS = (
    Column("metric", "metric"),
    Column("value", "value", show_value),
    Column("unit", "unit"),
    Column("95% CI", ("low", "high"), show_value),
    Column("n", "n", show_known),
    Column("metric_value", "source"),
)


def describe_run(rows: ReportRows, sources: Sequence[str] = ()) -> Section:
    """Build the section of identities, versions and settings, which must match for runs to be comparable.

    `sources` are the runs whose answers are the prompts.
    """
    run, spec = rows.run, json.loads(rows.run["spec_json"])
    section = Section("about", "Configuration")
    section.add(tabulate("Run", FACTS, _list_run(run, spec, sources)))
    opened = _read_facts(rows.first_opened)
    if opened:
        section.add(tabulate("Engine and machine, as the first engine opened", FACTS, opened))
    else:
        section.say("No engine opened, so its arguments, versions and device are unknown.")
    text = json.dumps(spec, indent=2, ensure_ascii=False)
    section.add(Quote("Spec", text[:SPEC_CHARACTERS], len(text)))
    return section


def list_metrics(rows: ReportRows) -> Section:
    """Build the table of all metrics, with the name of each in the database."""
    section = Section("metrics", "All metrics")
    section.say(
        "Every number is a row of metric_value, identified by the metric and statistic in the last column. A name with "
        "a dot is a column of another table."
    )
    section.add(tabulate("Metrics of the run", METRICS, rows.metrics, is_folded=True))
    return section


def _list_run(run: Row, spec: dict[str, Any], sources: Sequence[str]) -> list[tuple[str, str]]:
    engine, source = spec.get("engine", {}), spec.get("prompts", {}).get("source", {})
    pairs = {
        "run": run["run_id"],
        "name": run["name"],
        "model": run["model"],
        "model, content digest": run["model_id"],
        "tokenizer digest": run["tokenizer_id"],
        "chat template digest": run["template_id"],
        "prompt set": run["prompt_set"],
        **({"answers of": "; ".join(sources)} if sources else {}),
        "prompts": f"{show_value(run['prompt_rows'])}, {show_value(run['duplicate_prompts'])} of them duplicates",
        "sampling": _compact(spec.get("sampling")),
        "engine arguments given": _compact(engine.get("args")),
        **(
            {"imported from": f"{source['tool']} {source['version'] or ''}", "settings": _compact(source["settings"])}
            if run["purpose"] in IMPORTS
            else {"engine": f"{engine.get('backend')}, {engine.get('mode')}, {spec.get('workers')} workers"}
        ),
        "spec digest": run["spec_hash"],
        "configuration digest": run["config_id"],
        "assayline": run["assayline_version"],
        "machine": run["host_name"],
        "started (UTC)": _show_time(run["started_at"]),
        "ended (UTC)": _show_time(run["finished_at"]),
        "attempts": run["attempt"],
    }
    return [(name, show_value(value)) for name, value in pairs.items()]


def _read_facts(opened: Row | None) -> list[tuple[str, str]]:
    if opened is None:
        return []
    facts = json.loads(opened["details_json"])
    return [(name.replace("_", " "), _compact(value)) for name, value in sorted(facts.items())]


def _compact(value: object) -> str:
    if value is None or value == {}:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_time(value: Any) -> str | None:
    return None if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


GIB = 2**30


def say_cost(rows: ReportRows) -> str:
    """Return the cost for the headline; empty without a price, or if a priced quantity was not measured."""
    cost = rows.cost
    if cost["cost"] is None:
        return ""
    each = ""
    if cost["cost_per_right_answer"] is not None:
        span = _show_interval(cost)
        sure = f", 95% interval {span}" if span else ""
        each = (
            f"; {show_money(cost['cost_per_right_answer'], cost['currency'])} per correct answer while generating{sure}"
        )
    return f"Cost: {show_money(cost['cost'], cost['currency'])}, including loading and downtime{each}."


def describe_cost(rows: ReportRows) -> Section | None:
    """Build the section on devices, energy and cost; None if nothing was measured."""
    has_price = rows.cost["currency"] is not None
    if not rows.devices and not has_price:
        return None
    section = Section("cost", "Devices, energy and cost")
    if has_price:
        section.say(_introduce_cost(rows.cost), is_warning=rows.cost["cost"] is None)
        section.add(tabulate(f"Cost in {rows.cost['currency']}", COSTS, _list_costs(rows.cost)))
    if rows.energy is not None:
        section.say(_say_energy(rows.energy, rows.cost))
    if rows.devices:
        section.add(tabulate("Devices, over all samples", DEVICES, rows.devices, is_folded=True))
    return section


def _introduce_cost(cost: Row) -> str:
    if cost["cost"] is None:
        return "Cost unknown: a priced quantity (GPU-hours or energy) was not measured."
    return (
        "“generating” is the interval that throughput is measured over. “whole run” is from the start of the first "
        "engine to the end of the last, including loading, warm-up and downtime. See docs/guides/cost.md for what "
        "is excluded."
    )


def _show_interval(cost: Row) -> str:
    ends = (cost["cost_per_right_answer_low"], cost["cost_per_right_answer_high"])
    return show_range(*(show_money(end, cost["currency"]) for end in ends))


def _list_costs(cost: Row) -> list[tuple[str, str, str, str]]:
    kinds = {
        "run": ("working_cost", "cost"),
        "per million output tokens": ("cost_per_million_output_tokens", "full_cost_per_million_output_tokens"),
        "per thousand requests": ("cost_per_thousand_requests", "full_cost_per_thousand_requests"),
        "per correct answer": ("cost_per_right_answer", "full_cost_per_right_answer"),
    }
    return [
        (
            what,
            show_money(cost[at_work], cost["currency"]),
            _show_interval(cost) if at_work == "cost_per_right_answer" else "",
            show_money(cost[whole], cost["currency"]),
        )
        for what, (at_work, whole) in kinds.items()
    ]


def _say_energy(energy: Row, cost: Row) -> str:
    if energy["energy_joules"] is None:
        return "GPU energy is unknown: a sensor is missing, or samples are missing for more than 5% of the active time."
    if energy["energy_source"] == "counter":
        how = "from energy counters"
    else:
        how = f"integrated from power samples, with an error of at most {show_value(energy['energy_error_joules'])} J"
    each = ""
    if cost["energy_per_output_token_joules"] is not None:
        each = f" While generating, that is {show_value(cost['energy_per_output_token_joules'])} J per output token."
    return (
        f"{count(energy['gpus'], 'GPU')} used {show_value(energy['energy_joules'])} J ({how}), including "
        f"{show_value(energy['idle_joules'])} J with no engine generating.{each}"
    )


def _show_memory(row: Row) -> str:
    if row["max_memory_used_bytes"] is None:
        return show_value(None)
    return f"{row['max_memory_used_bytes'] / GIB:.1f} of {(row['memory_total_bytes'] or 0) / GIB:.1f}"


COSTS = (
    Column("cost", 0),
    Column("generating", 1, show_number),
    Column("95% CI", 2, show_number),
    Column("whole run", 3, show_number),
)
DEVICES = (
    Column("worker", "worker"),
    Column("device", "device"),
    Column("mean utilization", "mean_utilization_share", show_share),
    Column("max memory (GiB)", _show_memory),
    Column("mean power (W)", "mean_power_watts", show_value),
    Column("max power (W)", "max_power_watts", show_value),
    Column("max temp (°C)", "max_temperature_c", show_value),
    Column("throttled", "throttled_share", show_share),
    Column("throttle reason", "throttle_reasons", show_known),
)


def write_headline(rows: ReportRows) -> list[str]:
    """Return the headline sentences, most important first."""
    sentences = [
        _say_end(rows),
        _say_quality(rows),
        _say_speed(rows),
        say_cost(rows),
        _say_trouble(rows.summary),
        *rows.warnings,
    ]
    return [sentence for sentence in sentences if sentence]


def choose_figures(rows: ReportRows) -> list[Figure]:
    """Return the key figures that have a value; the first is always that of quality."""
    summary = rows.summary
    interval = show_range(show_share(summary["accuracy_low"]), show_share(summary["accuracy_high"]))
    figures = [
        Figure(
            "Mean verdict" if _is_judge(rows) else "Accuracy",
            show_share(summary["accuracy"]),
            (f"{interval}, n {summary['scored_samples']:,}" if interval else count(summary["scored_samples"], "score"))
            + _say_unasked(summary),
            is_bad=summary["unasked_rows"] > 0,
        ),
        Figure(
            "Output tokens/s",
            show_rate(summary["output_tokens_per_s"], "tokens"),
            show_rate(summary["requests_per_s"], "requests"),
        ),
        _latency_figure(rows, "TTFT", "ttft_s"),
        _latency_figure(rows, "E2E", "e2e_s"),
        Figure(
            "Errors",
            f"{summary['error_requests']:,}",
            f"of {count(summary['expected_requests'], 'request')}",
            is_bad=summary["error_requests"] > 0,
        ),
        Figure(
            "Engine failures",
            show_value(summary["engine_failures"]),
            count(summary["reductions"] or 0, "memory reduction"),
            is_bad=bool(summary["engine_failures"]),
        ),
    ]
    return figures[:1] + [figure for figure in figures[1:] if figure.value != DASH]


def find_percentile(rows: ReportRows, metric: str, percentile: float) -> Row | None:
    """Return a percentile of a latency, or None if nothing was measured."""
    for row in rows.percentiles:
        if (row["metric"], row["percentile"]) == (metric, percentile) and row["value_s"] is not None:
            return row
    return None


def _latency_figure(rows: ReportRows, label: str, metric: str) -> Figure:
    median, tail = find_percentile(rows, metric, 0.5), find_percentile(rows, metric, 0.95)
    if median is None or tail is None:
        return Figure(f"{label} p50", DASH)
    return Figure(f"{label} p50", show_seconds(median["value_s"]), f"p95 {show_seconds(tail['value_s'])}")


def _say_end(rows: ReportRows) -> str:
    summary, message = rows.summary, rows.run["message"]
    answered = say_answered(summary)
    reason = str(message).splitlines()[0].rstrip(".") if message else ""
    if (state := rows.run["state"]) in ENDED_WELL:
        return f"Run {state}: {answered}. {reason.partition(' hint: ')[0]}".rstrip()
    return f"Run {rows.run['state']}{reason and f': {reason}'}. {answered}."


def _is_judge(rows: ReportRows) -> bool:
    """Return whether the first score of the run is a verdict on other answers."""
    scorers = json.loads(rows.run["spec_json"]).get("scorers")
    return bool(scorers) and scorers[0].get("kind") == "verdict"


def _say_quality(rows: ReportRows) -> str:
    summary = rows.summary
    if summary["accuracy"] is None:
        return _say_unscored(rows)
    interval = show_range(show_share(summary["accuracy_low"]), show_share(summary["accuracy_high"]))
    sure = f", 95% interval {interval}" if interval else ""
    n = f"n {summary['scored_samples']:,}"
    share = show_share(summary["accuracy"])
    mean = f"Mean verdict {share}" if _is_judge(rows) else f"{share} correct by {summary['scorer']}"
    return f"{mean}{sure} ({n}{_say_unasked(summary)})."


def _say_unscored(rows: ReportRows) -> str:
    if not rows.summary["answered_requests"]:
        return "No request was answered, so nothing was scored."
    if rows.run["state"] not in ENDED_WELL:
        return (
            "The run has no scores: it has no targets, or it ended before scoring. Score the stored answers "
            f"with `assayline score {rows.run['run_id']}`."
        )
    return "Nothing was scored: the prompts have no targets, or the spec has no scorers."


def _say_unasked(summary: Row) -> str:
    """Report rows that were not sent, which lower the accuracy."""
    rows = summary["unasked_rows"]
    return f"; {count(rows, 'row')} could not be sent" if rows else ""


def _say_speed(rows: ReportRows) -> str:
    tail = find_percentile(rows, "e2e_s", 0.95)
    if rows.summary["output_tokens_per_s"] is None or tail is None:
        return "No times were reported." if rows.summary["ok_requests"] else "No results, so speed is unknown."
    rate = show_rate(rows.summary["output_tokens_per_s"], "output tokens")
    return f"{rate}; {name_metric('e2e_p95_s')} {show_seconds(tail['value_s'])}."


def _say_trouble(summary: Row) -> str:
    parts = []
    if summary["error_requests"]:
        parts.append(f"{count(summary['error_requests'], 'request')} failed")
    if summary["missing_requests"]:
        parts.append(f"{count(summary['missing_requests'], 'request has', 'requests have')} no result")
    if summary["engine_failures"]:
        reduced = f" and {count(summary['reductions'], 'reduction')}" if summary["reductions"] else ""
        parts.append(f"{count(summary['engine_failures'], 'engine failure')}{reduced}")
    if summary["context_limited_requests"]:
        parts.append(
            f"{count(summary['context_limited_requests'], 'answer was', 'answers were')} cut off at the context limit"
        )
    fine = "No request failed." if summary["engine_failures"] is None else "No request or engine failed."
    return f"Warning: {'; '.join(parts)}." if parts else "" if summary["ok_requests"] is None else fine
