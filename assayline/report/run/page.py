"""Headline, key figures, cost, and the description of a run."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from assayline.report.document import Column, Figure, Section, make_section, tabulate, warn
from assayline.report.measures import make_figure, quote_spec, tabulate_metrics
from assayline.report.run.rows import ENGINES, RunRows, say_answered
from assayline.store.database import Row
from assayline.store.manifest import ENDED_WELL, IMPORTS
from assayline.words import (
    DASH,
    count,
    show_known,
    show_money,
    show_number,
    show_range,
    show_rate,
    show_share,
    show_value,
)

FACTS = (Column("property", 0), Column("value", 1))


def describe_run(run: RunRows, sources: Sequence[str] = ()) -> Section | None:
    """Build the section of identities, versions and settings, which must match for runs to be comparable.

    `sources` are the runs whose answers are the prompts.
    """
    opened = run.read("select * from engine_events where run_id = ? and event = 'opened' order by at_s, worker limit 1")
    found = sorted(json.loads(opened[0]["details_json"]).items()) if opened else []
    facts = [(name.replace("_", " "), _compact(value)) for name, value in found]
    return make_section(
        "about",
        "Configuration",
        tabulate("Run", FACTS, _list_run(run.row, run.spec, sources)),
        tabulate("Engine and machine, as the first engine opened", FACTS, facts),
        None if facts else "No engine opened, so its arguments, versions and device are unknown.",
        quote_spec("Spec", run.spec),
    )


def list_metrics(metrics: Sequence[Row]) -> Section | None:
    """Build the table of all metrics, rows of `read_metric_table`, with the name of each in the database."""
    return make_section(
        "metrics",
        "All metrics",
        "Every number is a row of metric_value, identified by the metric and statistic in the last column. A name with "
        "a dot is a column of another table.",
        tabulate_metrics(metrics, is_folded=True),
    )


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
            else {"engine": f"{engine.get('backend')}, {engine.get('mode')}, {_name_workers(spec.get('workers') or 1)}"}
        ),
        "spec digest": run["spec_hash"],
        "configuration digest": run["config_id"],
        "assayline": run["assayline_version"],
        "host": run["host_name"],
        "machine": run["machine"],
        **(run["job"] or {}),
        "started (UTC)": _show_time(run["started_at"]),
        "ended (UTC)": _show_time(run["finished_at"]),
        "attempts": run["attempt"],
        "tags": ", ".join(run["tags"] or ()),
        "note": run["note"],
    }
    return [(name, show_value(value)) for name, value in pairs.items()]


def _name_workers(workers: int | str) -> str:
    return count(workers, "worker") if isinstance(workers, int) else f"workers: {workers}"


def _compact(value: object) -> str:
    if value is None or value == {}:
        return DASH
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_time(value: Any) -> str | None:
    return None if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


GIB = 2**30
RIGHT = "cost_per_right_answer"
EACH = {
    "per million output tokens": "cost_per_million_output_tokens",
    "per thousand requests": "cost_per_thousand_requests",
    "per correct answer": RIGHT,
}


def _say_cost(run: RunRows) -> str:
    """Return the cost for the headline; empty without a price, or if a priced quantity was not measured."""
    cost, each, currency = run.value("cost"), run.value(RIGHT, "mean"), _name_currency(run)
    if cost is None:
        return ""
    sure = f", 95% interval {span}" if (span := _show_interval(run)) else ""
    told = "" if each is None else f"; {show_money(each, currency)} per correct answer while generating{sure}"
    return f"Cost: {show_money(cost, currency)}, including loading and downtime{told}."


def _name_currency(run: RunRows) -> str:
    return (run.spec.get("price") or {}).get("currency") or ""


def describe_cost(run: RunRows) -> Section | None:
    """Build the section on devices, energy and cost; None if nothing was measured."""
    currency, devices = _name_currency(run), run.query("device_use", "devices")[:ENGINES]
    unknown = "Cost unknown: a priced quantity (GPU-hours or energy) was not measured."
    introduced = (
        "“generating” is the interval that throughput is measured over. “whole run” is from the start of the first "
        "engine to the end of the last, including loading, warm-up and downtime. See docs/guides/cost.md for what "
        "is excluded."
    )
    return make_section(
        "cost",
        "Devices, energy and cost",
        (warn(unknown) if run.value("cost") is None else introduced) if currency else None,
        tabulate(f"Cost in {currency}", COSTS, _list_costs(run, currency) if currency else ()),
        _say_energy(run, devices),
        tabulate("Devices, over all samples", DEVICES, devices, is_folded=True),
    )


def _show_interval(run: RunRows) -> str:
    row = run.values.get((f"{RIGHT} mean", None), {})
    return show_range(*(show_money(row.get(end), _name_currency(run)) for end in ("low", "high")))


def _list_costs(run: RunRows, currency: str) -> list[tuple[str, ...]]:
    kinds = {"run": ("working_cost", "cost"), **{name: (key, f"full_{key}") for name, key in EACH.items()}}
    shown = {name: [show_money(run.summary.get(key), currency) for key in keys] for name, keys in kinds.items()}
    return [
        (name, at_work, _show_interval(run) * (name == "per correct answer"), whole)
        for name, (at_work, whole) in shown.items()
    ]


def _say_energy(run: RunRows, devices: Sequence[Row]) -> str:
    if ("gpus total", None) not in run.values:
        return ""
    if run.value("energy_joules") is None:
        return "GPU energy is unknown: a sensor is missing, or samples are missing for more than 5% of the active time."
    error = show_value(run.value("energy_error_joules"))
    is_counted = {row["energy_source"] for row in devices if row["device"] != "host"} == {"counter"}
    how = f"integrated from power samples, with an error of at most {error} J"
    each = run.value("energy_per_output_token_joules", "mean")
    told = "" if each is None else f" While generating, that is {show_value(each)} J per output token."
    return (
        f"{count(run.value('gpus'), 'GPU')} used {show_value(run.value('energy_joules'))} J "
        f"({'from energy counters' if is_counted else how}), including {show_value(run.value('idle_joules'))} J with "
        f"no engine generating.{told}"
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


def write_headline(run: RunRows, metrics: Sequence[Row]) -> list[str]:
    """Return the headline sentences, most important first. `metrics` are rows of `read_metric_table`."""
    return [
        _say_end(run, say_run(metrics)),
        _say_unscored(run),
        _say_untimed(run.summary),
        _say_cost(run),
        *run.warnings,
    ]


def say_run(metrics: Iterable[Row]) -> str:
    """Return the words of a run's end: `98.1% correct, 2,786 tokens/s, 2 of 155 requests failed`.

    `metrics` are rows of `read_metric_table`, of whose scorers the first one counts.
    """
    found = {row["source"]: row for row in reversed([*metrics]) if row["value"] is not None}
    values = {source: row["value"] for source, row in found.items()}
    parts = []
    if accuracy := found.get("accuracy mean"):
        name, share = str(accuracy["metric"]).partition(" (")[0], show_share(accuracy["value"])
        parts.append(f"{share} correct" if name == "accuracy" else f"{name} {share}")
    if (rate := values.get("output_tokens_per_s mean")) is not None:
        parts.append(show_rate(rate, "tokens"))
    if errors := values.get("error_requests total"):
        parts.append(f"{errors:,.0f} of {found['error_requests total']['n']:,.0f} requests failed")
    counts = [(words, int(values.get(f"{metric} total") or 0)) for metric, words in TROUBLE.items()]
    return ", ".join([*parts, *(count(number, *words) for words, number in counts if number)])


TROUBLE = {
    "missing_requests": ("request has no result", "requests have no result"),
    "unasked_rows": ("row could not be sent", "rows could not be sent"),
    "engine_failures": ("engine failure",),
    "reductions": ("memory reduction",),
    "context_limited_requests": (
        "answer was cut off at the context limit",
        "answers were cut off at the context limit",
    ),
}
"""Counts of failures, in words."""


def choose_figures(run: RunRows, *, is_worse: bool) -> list[Figure | None]:
    """Return the key figures; the first is that of quality, also without a score."""
    summary = run.summary
    interval = show_range(show_share(summary["accuracy_low"]), show_share(summary["accuracy_high"]))
    n = summary["scored_samples"]
    scores = f"95%: {interval}, n {n:,}" if interval else count(n, "score")
    scores = ", ".join(filter(None, [summary["scorer"], scores]))
    return [
        Figure(
            "Mean verdict" if _is_judge(run) else "Accuracy",
            show_share(summary["accuracy"]),
            scores,
            is_bad=is_worse or summary["unasked_rows"] > 0,
        ),
        make_figure("output_tokens_per_s", run.values.get(("output_tokens_per_s mean", None))),
        make_figure("ttft_p50_s", run.values.get(("ttft_s p50", None))),
        make_figure("e2e_p95_s", run.values.get(("e2e_s p95", None))),
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


def _say_end(run: RunRows, words: str) -> str:
    message, answered = run.row["message"], say_answered(run.summary)
    reason = str(message).splitlines()[0].rstrip(".") if message else ""
    if (state := run.row["state"]) in ENDED_WELL:
        parts = [answered] if run.summary["expected_requests"] is None or not words else []
        told = "; ".join([*parts, *filter(None, [words])])
        return f"Run {state}: {told}. {reason.partition(' hint: ')[0]}".rstrip()
    return f"Run {state}{reason and f': {reason}'}. {answered}{words and f'; {words}'}."


def _is_judge(run: RunRows) -> bool:
    """Return whether the first score of the run is a verdict on other answers."""
    scorers = run.spec.get("scorers")
    return bool(scorers and scorers[0].get("kind") == "verdict")


def _say_unscored(run: RunRows) -> str:
    if run.summary["accuracy"] is not None:
        return ""
    if not run.summary["answered_requests"]:
        return "No request was answered, so nothing was scored."
    if run.row["state"] not in ENDED_WELL:
        return (
            "The run has no scores: it has no targets, or it ended before scoring. Score the stored answers "
            f"with `assayline score {run.run_id}`."
        )
    return "Nothing was scored: the prompts have no targets, or the spec has no scorers."


def _say_untimed(summary: Row) -> str:
    return "No times were reported." if summary["ok_requests"] and summary["output_tokens_per_s"] is None else ""
