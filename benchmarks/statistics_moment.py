"""Part `moment` of `benchmarks.statistics`: whether scores depend on the moment at which an answer was made.

Each run is a simulated queue of two workers with bursts. Prompts come by topic, and topics differ in difficulty and in
their cached prefix. Long prompts are harder. Wrong answers are longer, so that they fill the engine and are preempted
more often. Preemptions start at ten in flight, and the second half of a run has other engines. `score_factors` judges
the run.

In a run without a fault, every named factor is a false alarm. In a run with a fault, answers that meet its condition
are wrong with a probability of 0.8; `found` is the share of runs in which its factor is named, `others` the share in
which another one is named.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow

from assayline.store.database import apply_schema, read_rows

Row = dict[str, Any]
FAULT_SHARE = 0.8
WORKERS = 2
TOPICS = 8


@dataclass(frozen=True)
class Case:
    """A kind of run."""

    name: str
    prompts: int = 400
    repeats: int = 1
    has_reference: bool = False
    window: int | None = None
    """Requests in flight per worker in a closed loop; None for random arrivals."""
    ease: float = 0.7
    """Mean score without a fault."""
    fault: str = ""
    """Family of the factor that corrupts answers."""


ALIKE = [
    Case("one answer a prompt"),
    Case("four answers a prompt", prompts=100, repeats=4),
    Case("with a reference", has_reference=True),
    Case("closed loop", window=16),
    Case("nearly always right", ease=0.98),
]
FAULTY = [
    Case("at least 12 in flight", fault="in_flight"),
    Case("at least 12 in flight, four answers", prompts=200, repeats=4, fault="in_flight"),
    Case("at least 12 in flight, with a reference", has_reference=True, fault="in_flight"),
    Case("at least 12 in flight, nearly always right", ease=0.98, fault="in_flight"),
    Case("preempted", fault="preemptions"),
    Case("one of two workers", fault="worker"),
    Case("one of four engines, with a reference", has_reference=True, fault="engine"),
]
FAULTS: dict[str, Callable[[Row], bool]] = {
    "in_flight": lambda row: bool(row["in_flight"] >= 12),
    "preemptions": lambda row: bool(row["preemptions"] > 0),
    "worker": lambda row: bool(row["worker"] == "w1"),
    "engine": lambda row: bool(row["worker"] == "w1" and row["engine_generation"] == 1),
}


def measure_moments(seed: int, runs: int = 100) -> Iterator[Row]:
    """Yield false alarms over `runs` runs of a case, or finds over a third as many."""
    connection = duckdb.connect(config={"threads": 2})
    apply_schema(connection)
    for number, case in enumerate([*ALIKE, *FAULTY]):
        count = max(1, runs // 3) if case.fault else runs
        named = [judge(connection, case, [seed, number, draw]) for draw in range(count)]
        row: Row = {"runs": count, "false_alarms": "", "found": "", "others": ""}
        if case.fault:
            row["found"] = sum(case.fault in factors for factors in named) / count
            row["others"] = sum(bool(factors - {case.fault}) for factors in named) / count
        else:
            row["false_alarms"] = sum(map(bool, named)) / count
        yield {**row, "case": case.name}


def judge(connection: duckdb.DuckDBPyConnection, case: Case, seed: Sequence[int]) -> set[str]:
    """Return the families of factors that the product names for a simulated run."""
    connection.execute("begin")
    try:
        insert_run(connection, "run", simulate(case, [*seed, 0], [*seed, 2]))
        if case.has_reference:
            insert_run(connection, "reference", simulate(case, [*seed, 1], [*seed, 2], has_fault=False))
        found = read_rows(connection, "select * from internal.score_factors('run', reference := 'reference')")
    finally:
        connection.execute("rollback")
    return {row["factor"] for row in found if row["is_named"]}


def simulate(case: Case, seed: Sequence[int], prompt_seed: Sequence[int], *, has_fault: bool = True) -> list[Row]:
    """Return the answers of a run. The prompts depend on `prompt_seed` alone."""
    dice = np.random.default_rng(prompt_seed)
    topics = np.sort(dice.integers(0, TOPICS, case.prompts))
    lengths = np.exp(dice.normal(5, 0.7, case.prompts))
    logits = np.log(case.ease / (1 - case.ease)) + dice.normal(0, 1, TOPICS)[topics]
    logits += dice.normal(0, 1.5, case.prompts) - 0.7 * (np.log(lengths) - 5)
    prefixes = dice.integers(0, 60, TOPICS)[topics]
    usual = dice.random(case.prompts)

    dice = np.random.default_rng(seed)
    fault = FAULTS[case.fault] if case.fault and has_fault else None
    answers: list[Row] = []
    busy: list[list[float]] = [[] for _ in range(WORKERS)]
    count = case.prompts * case.repeats
    now_s = log_rate = 0.0
    for number in range(count):
        prompt = number // case.repeats
        if case.window is None:
            log_rate += 0.05 * (dice.normal(0, 3) - log_rate)
            now_s += dice.exponential(0.03 * np.exp(-log_rate))
        elif min(map(len, busy)) >= case.window:
            now_s = max(now_s, min(min(times) for times in busy if len(times) >= case.window))
        for times in busy:
            while times and times[0] <= now_s:
                heapq.heappop(times)
        place = min(range(WORKERS), key=lambda place: (len(busy[place]), dice.random()))
        row: Row = {
            "prompt": prompt,
            "repeat_index": number % case.repeats,
            "worker": f"w{place}",
            "engine_generation": int(number >= count // 2),
            "in_flight": len(busy[place]) + 1,
        }
        luck = usual[prompt] if dice.random() < 0.6 else dice.random()
        is_right = luck < 1 / (1 + np.exp(-logits[prompt]))
        output_tokens = int(np.exp(dice.normal(3.2 if is_right else 3.7, 0.5))) + 1
        duration_s = output_tokens * 0.012 * (1 + row["in_flight"] / 32)
        row["preemptions"] = int(dice.random() < 0.03 * duration_s * max(0, row["in_flight"] - 9))
        if fault is not None and fault(row) and dice.random() < FAULT_SHARE:
            is_right = False
        row |= {
            "value": float(is_right),
            "text": "right" if is_right else f"wrong {dice.integers(3)}",
            "at_s": now_s,
            "finished_at_s": now_s + duration_s,
            "prompt_tokens": int(lengths[prompt]) + 60,
            "cached_tokens": int(prefixes[prompt]) if number % case.repeats == 0 else int(lengths[prompt]) // 16 * 16,
            "output_tokens": output_tokens,
        }
        heapq.heappush(busy[place], row["finished_at_s"])
        answers.append(row)
    return answers


def insert_run(connection: duckdb.DuckDBPyConnection, run_id: str, answers: list[Row]) -> None:
    """Insert a run with its scores into the raw tables."""
    connection.register("answers", pyarrow.Table.from_pylist(answers))
    for statement in _INSERTS:
        connection.execute(statement.replace("$run", f"'{run_id}'"))
    connection.unregister("answers")


_INSERTS = (
    """
    insert into raw.runs by name
    select $run as run_id, 'spec' as name, 'set' as prompt_set, 'model' as model, 'hash' as spec_hash,
        '{}' as spec_json, 'config' as config_id, '0' as assayline_version, 'host' as host_name, 1 as attempt,
        'completed' as state, timestamp '2026-01-01' as started_at
    """,
    """
    insert into raw.prompts by name
    select distinct $run as run_id, printf('p%06d', prompt) as prompt_id, 0 as occurrence, prompt as source_row,
        '[]' as messages_json, '{}' as metadata_json
    from answers
    """,
    """
    insert into raw.requests by name
    select $run as run_id, printf('p%06d-%d', prompt, repeat_index) as request_id,
        printf('p%06d', prompt) as prompt_id, 0 as occurrence, repeat_index, '{}' as sampling_json
    from answers
    """,
    """
    insert into raw.completions by name
    select $run as run_id, printf('p%06d-%d', prompt, repeat_index) as request_id, worker, engine_generation,
        at_s as sent_at_s, at_s as arrived_at_s, finished_at_s, prompt_tokens, cached_tokens, output_tokens,
        preemptions, text
    from answers
    """,
    """
    insert into raw.scorers by name
    select $run as run_id, 's' as scorer, 's' as kind, 0 as ordinal, '{}' as arguments_json,
        '0' as assayline_version, timestamp '2026-01-01' as scored_at
    """,
    """
    insert into raw.scores by name
    select $run as run_id, 's' as scorer, printf('p%06d', prompt) as prompt_id, 0 as occurrence, repeat_index, value
    from answers
    """,
)
