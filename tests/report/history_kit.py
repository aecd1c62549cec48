"""A history to report on, made from rows: nights of one spec, each with a given accuracy and speed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from assayline.settings import Settings
from assayline.store.database import connect

NAME = "nightly"
FIRST = datetime(2026, 10, 1, 1, 30)
PROMPTS = 40
OUTPUT_TOKENS = 11


@dataclass(frozen=True)
class NightOf:
    """One night: what was measured, and under which conditions."""

    right: int = 32
    """Prompts answered right, of PROMPTS."""
    request_s: float = 1.0
    """End to end, of each request; one after another, so that it is the throughput as well."""
    state: str = "completed"
    attempt: int = 1
    vllm: str = "0.30.0"
    driver: str | None = "570.86"
    model_id: str = "model-1"
    prompts: str = "p"
    temperature: float = 0.0
    name: str = NAME
    model: str = "models/small"
    benchmark_id: str | None = None
    days_later: float = 1.0
    verdict: Mapping[str, str] = field(default_factory=dict)
    """What a gate said, by what the limit is on."""
    baseline: str | None = None
    """gate.baseline of its spec."""


def noisy_nights(count: int, seed: int = 1, **changes: Any) -> list[NightOf]:
    """Nights of one level: speeds within a few percent, accuracy within the noise of its prompts."""
    dice = np.random.default_rng(seed)
    return [
        NightOf(right=int(dice.binomial(PROMPTS, 0.8)), request_s=float(np.exp(dice.normal(0, 0.02))), **changes)
        for _ in range(count)
    ]


def given_nights(settings: Settings, nights: Sequence[NightOf], first: int = 0) -> list[str]:
    """Stores the nights; their run ids, in order. `first` is the number of the first one."""
    run_ids = []
    with connect(settings.database_path, 10) as connection:

        def insert(table: str, rows: list[dict[str, Any]]) -> None:
            if not rows:
                return
            names = list(rows[0])
            types = dict(connection.execute(f"select name, type from pragma_table_info('{table}')").fetchall())
            values = ", ".join(f"unnest(?::{types[name]}[])" for name in names)
            columns = [[row[name] for row in rows] for name in names]
            connection.execute(f"insert into {table} ({', '.join(names)}) select {values}", columns)

        tables: dict[str, list[dict[str, Any]]] = {}
        started_at = FIRST + timedelta(days=first)
        for number, night in enumerate(nights, first):
            run_id = f"night-{number:03}"
            run_ids.append(run_id)
            for table, rows in make_rows(run_id, night, started_at).items():
                tables.setdefault(table, []).extend(rows)
            started_at += timedelta(days=night.days_later)
        for table, rows in tables.items():
            insert(table, rows)
    return run_ids


def make_rows(run_id: str, night: NightOf, started_at: datetime) -> dict[str, list[dict[str, Any]]]:
    """The raw rows of a night."""
    spec = {"name": night.name, "sampling": {"temperature": night.temperature}, "gate": {"baseline": night.baseline}}
    keys = [{"run_id": run_id, "prompt_id": f"{night.prompts}{i}", "occurrence": 0} for i in range(PROMPTS)]
    details = {"vllm_version": night.vllm, "device_name": "X1", "driver_version": night.driver}
    starts = [20 + i * night.request_s for i in range(PROMPTS)]
    return {
        "runs": [
            {
                "run_id": run_id,
                "name": night.name,
                "prompt_set": "sums",
                "model": night.model,
                "model_id": night.model_id,
                "spec_hash": f"spec-{night.temperature}",
                "spec_json": json.dumps(spec),
                "config_id": f"config-{night.model_id}-{night.temperature}",
                "benchmark_id": night.benchmark_id,
                "assayline_version": "0",
                "host_name": "host",
                "attempt": night.attempt,
                "state": night.state,
                "message": None if night.state == "completed" else "the disk was full",
                "started_at": started_at,
                "expected_requests": PROMPTS,
            }
        ],
        "prompts": [
            {**key, "source_row": i, "messages_json": "[]", "metadata_json": "{}"} for i, key in enumerate(keys)
        ],
        "requests": [
            {**key, "request_id": f"r{i}", "repeat_index": 0, "sampling_json": "{}"} for i, key in enumerate(keys)
        ],
        "completions": [
            {
                "run_id": run_id,
                "request_id": f"r{i}",
                "worker": "w",
                "engine_generation": 0,
                "window_requests": 1,
                "arrived_at_s": start,
                "first_token_at_s": start + 0.1 * night.request_s,
                "last_token_at_s": start + night.request_s,
                "finished_at_s": start + night.request_s,
                "output_tokens": OUTPUT_TOKENS,
                "text": "x",
            }
            for i, start in enumerate(starts)
        ],
        "engine_events": [
            {
                "run_id": run_id,
                "worker": "w",
                "attempt": 1,
                "engine_generation": 0,
                "event": event,
                "at_s": at_s,
                "details_json": json.dumps(details) if event == "opened" else "{}",
            }
            for event, at_s in (("opened", 10.0), ("warmed_up", 15.0), ("closed", starts[-1] + 2 * night.request_s))
        ],
        "scorers": [
            {
                "run_id": run_id,
                "scorer": "exact_match",
                "kind": "exact_match",
                "ordinal": 0,
                "arguments_json": "{}",
                "assayline_version": "0",
                "scored_at": started_at,
            }
        ],
        "scores": [
            {**key, "scorer": "exact_match", "repeat_index": 0, "value": float(i < night.right)}
            for i, key in enumerate(keys)
        ],
        "verdicts": [
            {
                "run_id": run_id,
                "baseline_run_id": "night-000",
                "judged_at": started_at,
                "ordinal": ordinal,
                "limit_on": limit_on,
                "verdict": verdict,
                "unit": "share",
                "words": f"{limit_on} was {verdict}.",
            }
            for ordinal, (limit_on, verdict) in enumerate(night.verdict.items())
        ],
    }
