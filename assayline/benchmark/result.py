"""Results of a benchmark: metrics of each configuration over its repeats, compared with the first one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assayline.comparison.queries import (
    compare_accuracy,
    compare_speed,
    describe_repeats,
    list_repeats,
    read_benchmark,
    store_comparisons,
)
from assayline.spec.criteria import GateSpec
from assayline.store.database import Connection

SHOWN = (
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
"""Metrics in the table; the database has all."""


@dataclass(frozen=True, slots=True)
class Measured:
    label: str
    config_id: str
    repeats: int
    metrics: dict[str, dict[str, Any]]
    """Median and range over its repeats, by metric."""
    comparisons: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of compare_repeats against the first configuration, by metric; empty for the first."""


def read_measured(
    connection: Connection, benchmark_id: str, labels: Mapping[str, str], gate: Mapping[str, Any]
) -> list[Measured]:
    """Read the configurations in `labels` (by config_id), compared with the limits of a gate.

    The metrics of `max_slowdown` are one family of tests for each.
    """
    limits, max_drop = gate.get("max_slowdown") or {}, gate.get("max_accuracy_drop", GateSpec().max_accuracy_drop)
    rows, repeats = read_benchmark(connection, benchmark_id), list_repeats(connection, benchmark_id)
    first = repeats.get(next(iter(labels)), [])
    found = []
    for number, (config_id, label) in enumerate(labels.items()):
        runs = repeats.get(config_id, [])
        metrics = {metric: row for (measured_id, metric), row in rows.items() if measured_id == config_id}
        compared = compare_speed(connection, runs, first, limits) if number and runs and first else {}
        if "accuracy" in compared:
            compared["accuracy"] |= compare_accuracy(connection, runs, first, max_drop)
        sides = {"run_id": runs[-1], "baseline_run_id": first[-1]} if compared else {}
        described = [describe_repeats(row) | sides | {"verdict": row["verdict"]} for row in compared.values()]
        store_comparisons(connection, "benchmark", described)
        found.append(Measured(label, config_id, len(runs), metrics, compared))
    return found
