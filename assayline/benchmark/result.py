"""Results of a benchmark: metrics of each configuration over its repeats, compared with the best or a baseline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assayline.comparison.benchmarks import list_repeats, read_benchmark
from assayline.comparison.queries import compare_accuracy, compare_speed, store_comparisons
from assayline.spec.criteria import GateSpec
from assayline.stats.worse import Comparison
from assayline.store.database import Connection
from assayline.words import name_metric

SHOWN: dict[str, str] = {
    metric: name_metric(metric)
    for metric in (
        "output_tokens_per_s",
        "requests_per_s",
        "ttft_p50_s",
        "tpot_p50_s",
        "e2e_p50_s",
        "e2e_p95_s",
        "accuracy",
        "cost_per_right_answer",
        "cost_per_million_output_tokens",
        "energy_per_output_token_joules",
    )
}
"""Metrics in the table, in words; the database has all."""


@dataclass(frozen=True, slots=True)
class Measured:
    label: str
    config_id: str
    repeats: int
    metrics: dict[str, dict[str, Any]]
    """Values of its repeats, with median and range, by metric."""
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    """Of other metrics than its best, or with the baseline."""
    references: dict[str, str] = field(default_factory=dict)
    """The label of the configuration that each is with."""


def read_measured(
    connection: Connection,
    benchmark_id: str,
    labels: Mapping[str, str],
    gate: Mapping[str, Any],
    baseline: str | None = None,
) -> list[Measured]:
    """Read the configurations in `labels` (by config_id), compared with the limits of a gate.

    Each is compared with the config_id `baseline`, or by default with the best of each metric: p is then multiplied by
    the number of its rivals (multiple comparisons with the best: Hsu 1984, by Bonferroni). The metrics of
    `max_slowdown` are one family of tests for each.
    """
    limits, max_drop = gate.get("max_slowdown") or {}, gate.get("max_accuracy_drop", GateSpec().max_accuracy_drop)
    rows, repeats = read_benchmark(connection, benchmark_id), list_repeats(connection, benchmark_id)
    best: dict[str, dict[str, Any]] = {}
    for config_id in labels:
        for metric, row in {metric: row for (one, metric), row in rows.items() if one == config_id}.items():
            if row["repeats"] and (metric not in best or _is_better(row, best[metric])):
                best[metric] = row
    rivals = 1 if baseline else max(1, len(repeats.keys() & labels.keys()) - 1)
    found = []
    for config_id, label in labels.items():
        runs, answered = repeats.get(config_id, ([], []))
        metrics = {metric: row for (measured_id, metric), row in rows.items() if measured_id == config_id}
        compared: dict[str, Comparison] = {}
        references: dict[str, str] = {}
        for reference in dict.fromkeys([baseline] if baseline else [row["config_id"] for row in best.values()]):
            others, scored = repeats.get(str(reference), ([], []))
            if reference == config_id or not answered or not scored:
                continue
            pairs = compare_speed(connection, runs, others, limits, rivals=rivals) if runs and others else {}
            wanted = [metric for metric, row in best.items() if baseline or row["config_id"] == reference]
            pairs = {metric: pairs[metric] for metric in wanted if metric in pairs}
            if "accuracy" in wanted and (by_prompt := compare_accuracy(connection, answered, scored, max_drop, rivals)):
                pairs["accuracy"] = by_prompt
            sides = {"run_id": answered[-1], "baseline_run_id": scored[-1]}
            rows_of_pairs = [one.as_row(one.name_change()) | sides | {"detail": None} for one in pairs.values()]
            store_comparisons(connection, "benchmark", rows_of_pairs)
            compared |= pairs
            references |= dict.fromkeys(pairs, labels[str(reference)])
        found.append(Measured(label, config_id, len(runs), metrics, compared, references))
    return found


def _is_better(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool((row["median_value"] > other["median_value"]) == row["higher_is_better"]) and (
        row["median_value"] != other["median_value"]
    )
