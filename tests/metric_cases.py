"""Forty runs as raw rows, drawn from seeds: every way in which a run's metrics differ. `python -m tests.metric_cases`
(from the root) draws them into `tests/fixtures/metrics`, with the metrics that today's code stores of them.

`test_sql_recomputed.py` compares: rewrite the expected values only with a change that means to change them.
"""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

FOLDER = Path(__file__).parent / "fixtures" / "metrics"
LARGE = "large"
"""A run of 100,000 requests, too large for a fixture: it is drawn again for each test."""
Row = dict[str, Any]
Rows = dict[str, list[Row]]
START = datetime(2026, 11, 1)
TABLES = {
    "completions": "worker engine_generation window_requests",
    "engine_events": "worker attempt engine_generation event at_s",
}
RATES = {
    "gpu": {"currency": "EUR", "per_gpu_hour": 2.5},
    "machine": {"currency": "USD", "per_machine_hour": 8.0},
    "energy": {"currency": "EUR", "per_gpu_hour": 2.0, "per_kwh": 0.31, "gpus": 3},
    "tokens": {"currency": "USD", "per_million_input_tokens": 1.5, "per_million_output_tokens": 6.0},
    "cached": {"currency": "USD", "per_million_input_tokens": 2, "per_million_cached_tokens": 0.2,
               "per_million_output_tokens": 8},
}  # fmt: skip
POISSON = {"arrival": "poisson", "requests_per_s": 5.0}
CLOSED = {"arrival": "concurrency", "concurrency": 8}
WINDOWS = {"warmup_s": 2.0, "cooldown_s": 1.5}
SLOS = (("interactive", "ttft_s", 0.4), ("interactive", "tpot_s", 0.03), ("patient", "e2e_s", 1.2))

CASES: dict[str, dict[str, Any]] = {
    "offline": {"scorers": ["exact_match"]},
    "offline-errors": {"errors": 0.3, "scorers": ["exact_match", "contains"], "unrendered": 4},
    "offline-all-errors": {"errors": 1.0, "scorers": ["exact_match"]},
    "offline-all-right": {"right": 1.0, "scorers": ["exact_match"], "price": "gpu"},
    "offline-all-wrong": {"right": 0.0, "scorers": ["exact_match"], "price": "machine"},
    "one-request": {"requests": 1, "scorers": ["exact_match"], "price": "tokens"},
    "two-requests": {"requests": 2, "scorers": ["exact_match"], "price": "cached", "stamps": True},
    "empty": {"requests": 0},
    "failed-before-an-engine": {"requests": 0, "state": "failed", "engines": False, "expected": 12},
    "unanswered": {"missing": 1.0, "state": "interrupted"},
    "cancelled": {"missing": 0.4, "state": "cancelled"},
    "resumed": {"attempts": 3, "crashes": 0.5, "scorers": ["exact_match"], "price": "gpu", "gpus": "counter"},
    "crashes": {"workers": 3, "crashes": 0.7, "gpus": "power", "price": "energy"},
    "vanished": {"attempts": 2, "workers": 2, "crashes": 0.3, "vanishes": 0.6},
    "crashes-again": {"attempts": 2, "workers": 2, "crashes": 0.6, "vanishes": 0.3, "missing": 0.2, "price": "machine"},
    "doubled-answers": {"doubles": 0.2, "errors": 0.2, "scorers": ["exact_match"]},
    "async": {"stamps": True, "scorers": ["token_f1"], "partial": True},
    "async-tokens-at-once": {"stamps": True, "bursts": True},
    "server": {"is_server": True, "retried": 0.2, "workers": 2, "price": "tokens"},
    "untimed": {"is_timed": False, "scorers": ["exact_match"], "price": "tokens"},
    "poisson": {"load": POISSON, "slos": SLOS, "requests": 300},
    "poisson-windows": {"load": POISSON | WINDOWS, "slos": SLOS, "requests": 200, "gpus": "power", "price": "energy"},
    "poisson-late": {"load": POISSON, "lag_s": 0.8, "requests": 80, "unsent": 0.1},
    "poisson-saturated": {"load": POISSON | {"requests_per_s": 30.0}, "requests": 400, "queue": 0.06},
    "poisson-many": {"load": POISSON | WINDOWS | {"requests_per_s": 40.0}, "slos": SLOS[:2], "requests": 2600},
    "poisson-stopped": {"load": POISSON, "requests": 60, "unsent": 0.3, "stopped": True},
    "windows-leave-nothing": {"load": POISSON | {"warmup_s": 60.0, "cooldown_s": 60.0}, "requests": 40, "slos": SLOS},
    "closed": {"load": CLOSED, "slos": SLOS, "requests": 450, "gpus": "counter", "scorers": ["exact_match"]},
    "closed-windows": {"load": CLOSED | WINDOWS, "requests": 250, "workers": 2},
    "all-at-once": {"load": {"arrival": "all_at_once"}, "requests": 80, "slos": SLOS},
    "trace": {"load": {"arrival": "trace", "requests_per_s": None}, "requests": 90, "turns": 3},
    "media": {"media": True, "requests": 50, "scorers": ["exact_match"]},
    "media-server": {"media": True, "is_server": True, "load": CLOSED | WINDOWS, "requests": 120},
    "drafts": {"drafts": True, "stamps": True, "bursts": True},
    "repeats": {"repeats": 5, "requests": 40, "scorers": ["exact_match", "contains"], "price": "gpu"},
    "repeats-clusters": {"repeats": 4, "requests": 48, "clusters": 7, "scorers": ["numeric"], "price": "machine"},
    "repeats-uneven": {"repeats": 3, "requests": 30, "unscored": 0.2, "partial": True, "scorers": ["exact_match"],
                       "price": "tokens"},
    "clusters": {"clusters": 5, "requests": 60, "scorers": ["exact_match", "token_f1"], "partial": True},
    "one-cluster": {"clusters": 1, "requests": 20, "scorers": ["exact_match"], "price": "gpu"},
    "options": {"options": 4, "requests": 30, "scorers": ["loglikelihood"], "errors": 0.05},
    "judged": {"scorers": ["verdict", "exact_match"], "partial": True, "duplicates": 0.2, "price": "gpu"},
    "imported": {"state": "imported", "engines": False, "is_server": True, "scorers": ["exact_match"]},
    "imported-without-times": {"state": "imported", "engines": False, "is_timed": False, "lengths": False,
                               "scorers": ["exact_match"]},
    LARGE: {"requests": 100_000, "load": CLOSED, "scorers": ["exact_match"], "price": "machine", "repeats": 2},
}  # fmt: skip


def draw_run(run_id: str, **traits: Any) -> Rows:
    """Draw the raw rows of a run."""
    return _Drawn(run_id, np.random.default_rng(list(run_id.encode())), traits).rows


class _Drawn:
    """A run that is drawn, row by row. Its clock has ticks of 1 µs."""

    def __init__(self, run_id: str, dice: np.random.Generator, traits: dict[str, Any]) -> None:
        self.run_id, self.dice, self.traits = run_id, dice, traits
        self.rows: Rows = {}
        requests, repeats = traits.get("requests", 60), traits.get("repeats", 1)
        self.draw_engines()
        self.draw_requests(max(requests // repeats, min(requests, 1)), repeats)
        if load := traits.get("load"):
            self.add("loads", **{"arrival": "poisson", "warmup_s": 0.0, "cooldown_s": 0.0} | load)
        for slo, metric, limit_s in traits.get("slos", ()):
            self.add("slos", slo=slo, metric=metric, limit_s=limit_s)
        self.add_run(requests)

    def add(self, table: str, **row: Any) -> None:
        self.rows.setdefault(table, []).append({"run_id": self.run_id, **row})

    def chance(self, trait: str, default: float = 0.0) -> bool:
        return bool(self.dice.random() < self.traits.get(trait, default))

    def seconds(self, low: float, high: float) -> float:
        return round(float(self.dice.uniform(low, high)), 6)

    def add_run(self, requests: int) -> None:
        traits = self.traits
        columns = {"cluster": "topic/of~all"} if traits.get("clusters") else {}
        spec = {"price": RATES.get(traits.get("price", "")), "prompts": {"columns": columns}}
        self.add(
            "runs",
            name="spec", prompt_set="set", model="model", spec_hash="hash", spec_json=json.dumps(spec),
            assayline_version="0", host_name="host", purpose="evaluate", attempt=traits.get("attempts", 1),
            state=traits.get("state", "completed"), started_at=START,
            expected_requests=None if self.run_id == "cancelled" else traits.get("expected", requests),
        )  # fmt: skip

    def draw_engines(self) -> None:
        """Draw lives of engines: `self.engines` has those that answer, with the beginning and end of their work."""
        self.engines: list[Row] = []
        if not self.traits.get("engines", True):
            self.engines = [{"worker": "tool", "engine_generation": 0, "from_s": 0.0, "until_s": 30.0, "attempt": 1}]
            return
        began_s, generations = 0.0, [0] * self.traits.get("workers", 1)
        for attempt in range(1, self.traits.get("attempts", 1) + 1):
            ends = [began_s]
            for worker in range(len(generations)):
                at_s = began_s
                for _ in range(4):
                    at_s, is_over = self.draw_life(f"w{worker}", attempt, generations[worker], at_s)
                    generations[worker] += 1
                    ends.append(at_s)
                    if is_over:
                        break
            began_s = max(ends) + self.seconds(12, 60)

    def draw_life(self, worker: str, attempt: int, generation: int, at_s: float) -> tuple[float, bool]:
        key = {"worker": worker, "engine_generation": generation}

        def tell(event: str, at_s: float, duration_s: float | None = None, **details: Any) -> None:
            known = {"attempt": attempt, "event": event, "at_s": round(at_s, 6), "duration_s": duration_s}
            self.add("engine_events", **key, **known, details_json=json.dumps(details))

        load_s = self.seconds(2, 5)
        at_s += load_s
        if self.chance("crashes") and self.dice.random() < 0.3:
            tell("failed", at_s, phase="start", in_flight_requests=0, is_memory=True)
            tell("reduced", at_s, gpu_memory_utilization={"from": 0.9, "to": 0.8})
            return at_s, False
        tell("opened", at_s, load_s, window_requests=8, claimed_gpus=2 if self.traits.get("gpus") else 1,
             device="cuda", tensor_parallel_size=1)  # fmt: skip
        if self.dice.random() < 0.9:
            warmup_s = self.seconds(0.5, 1)
            at_s += warmup_s
            tell("warmed_up", at_s, warmup_s)
        from_s, until_s = at_s + 0.01, at_s + self.seconds(8, 20)
        self.engines.append({**key, "from_s": from_s, "until_s": until_s, "attempt": attempt})
        self.draw_samples(key, at_s - load_s, until_s)
        if self.chance("crashes"):
            details = {"in_flight_requests": int(self.dice.integers(0, 3))} if self.dice.random() < 0.7 else {}
            tell("failed", until_s + 0.3, phase="run", kind="device_oom", **details)
            tell(str(self.dice.choice(["reduced", "isolated"])), until_s + 0.3, window_requests={"from": 8, "to": 4})
            return until_s + 0.3, False
        if self.chance("vanishes"):
            return until_s, True
        if load := self.traits.get("stopped"):
            tell("load_ended", until_s, reason="saturated" if load else "")
        tell("closed", until_s + 5, 0.2)
        return until_s + 5, True

    def draw_samples(self, key: Row, from_s: float, until_s: float) -> None:
        steps = tokens = 0
        counts = {f"cuda-{number}": self.seconds(100, 900) for number in range(2)}
        for at_s in np.arange(from_s, until_s, 1.0).round(6).tolist():
            steps, tokens = steps + int(self.dice.integers(0, 9)), tokens + int(self.dice.integers(0, 60))
            if not self.traits.get("is_server"):
                in_flight = int(self.dice.integers(0, 4))
                self.add("telemetry", **key, at_s=at_s, in_flight_requests=in_flight, engine_steps=steps,
                         output_tokens=tokens)  # fmt: skip
            if gpus := self.traits.get("gpus"):
                for device in counts:
                    power = self.seconds(80, 600)
                    counts[device] += power
                    if self.dice.random() < 0.02:
                        continue
                    self.add("device_telemetry", worker=key["worker"], device=device, at_s=at_s, power_watts=power,
                             energy_joules=counts[device] if gpus == "counter" else None)  # fmt: skip
            self.add("device_telemetry", worker=key["worker"], device="host", at_s=at_s, utilization_share=0.5)

    def draw_requests(self, prompts: int, repeats: int) -> None:
        if not prompts:
            return
        for scorer in self.traits.get("scorers", ()):
            arguments = json.dumps({"of": scorer})
            self.add("scorers", scorer=scorer, kind=scorer, ordinal=self.traits["scorers"].index(scorer),
                     arguments_json=arguments, assayline_version="0", scored_at=START, definition="d")  # fmt: skip
        for number in range(prompts):
            is_again = number > 0 and self.chance("duplicates")
            prompt = {"prompt_id": f"p{number - is_again}", "occurrence": int(is_again)}
            cluster = f"c{self.dice.integers(self.traits.get('clusters', 1))}" if self.dice.random() < 0.9 else None
            metadata = json.dumps({"topic/of~all": cluster} if self.traits.get("clusters") else {})
            self.add("prompts", **prompt, source_row=number, messages_json="[]", target="1", metadata_json=metadata)
            skill = self.traits.get("right", self.dice.beta(2, 1))
            for repeat in range(repeats):
                self.draw_sample({**prompt, "repeat_index": repeat}, f"{number}-{repeat}", skill)

    def draw_sample(self, sample: Row, name: str, skill: float) -> None:
        turns, options = self.traits.get("turns"), self.traits.get("options")
        statuses = []
        for part in range(turns or options or 1):
            named = {"turn_index": part, "turns": turns} if turns else {}
            named |= {"option_index": part, "option": str(part), "option_tokens": 2} if options else {}
            limit = {} if self.dice.random() < 0.1 else {"max_tokens": 40}
            self.add("requests", **sample, request_id=f"{name}-{part}", sampling_json=json.dumps(limit), **named)
            statuses.append(self.draw_answer(f"{name}-{part}", is_option=bool(options)))
        if "missing" in statuses or "unsent" in statuses:
            return
        for scorer in self.traits.get("scorers", ()):
            if self.chance("unscored"):
                continue
            is_error = "error" in statuses
            value = float(self.dice.random() < skill)
            if self.traits.get("partial") and self.dice.random() < 0.4:
                value = round(float(self.dice.random()), 3)
            extracted = None if self.dice.random() < 0.1 else str(int(self.dice.integers(3)))
            self.add("scores", **sample, scorer=scorer, value=0.0 if is_error else value,
                     extracted=None if is_error else extracted, error_kind="broken" if is_error else None)  # fmt: skip

    def draw_answer(self, request_id: str, is_option: bool) -> str:
        if self.chance("missing"):
            return "missing"
        engine = self.engines[int(self.dice.integers(len(self.engines)))]
        key = {"request_id": request_id, "worker": engine["worker"], "engine_generation": engine["engine_generation"]}
        if len(self.rows.get("completions", ())) < self.traits.get("unrendered", 0):
            self.add("completions", **key | {"worker": "prepare"}, error_kind="template", error_message="no")
            return "error"
        if self.chance("unsent"):
            self.add("completions", **key, error_kind="not_sent")
            return "unsent"
        columns = self.draw_stamps(engine, request_id)
        if self.chance("errors", 0.05):
            del columns["finish_reason"]
            kept = {name: value for name, value in columns.items() if not name.endswith("tokens")}
            self.add("completions", **key, **kept, error_kind="refused", error_message="no")
            return "error"
        if is_option:
            columns |= {"option_logprob": self.seconds(-9, 0)}
        self.add("completions", **key, **columns)
        if self.chance("doubles"):
            self.add("completions", **key, **self.draw_stamps(engine, request_id), error_kind=None)
        return "ok"

    def draw_stamps(self, engine: Row, request_id: str) -> Row:
        traits, tokens = self.traits, int(self.dice.integers(1, 41))
        load = traits.get("load") or {}
        is_open = bool(load) and load["arrival"] != "concurrency"
        found: Row = {"window_requests": None if is_open else 8}
        if traits.get("lengths", True):
            found |= {"prompt_tokens": int(self.dice.integers(5, 300)), "output_tokens": tokens}
        found["finish_reason"] = "length" if tokens > 36 or self.dice.random() < 0.05 else "stop"
        if not traits.get("lengths", True):
            found["finish_reason"] = None
        if traits.get("is_timed", True):
            sent_s = self.seconds(engine["from_s"], max(engine["from_s"] + 0.1, engine["until_s"] - 3))
            if load.get("arrival") == "all_at_once":
                sent_s = engine["from_s"] + self.seconds(0, 0.01)
            elif is_open and load.get("requests_per_s"):
                sent_s = engine["from_s"] + self.seconds(0, traits.get("requests", 60) / load["requests_per_s"])
            elif load and traits.get("requests", 60) > 1000:
                sent_s = engine["from_s"] + self.seconds(0, 400)
            wait_s = traits.get("queue", 0.0) * (sent_s - engine["from_s"]) * 10
            steps = np.cumsum([
                self.seconds(0, 0.003), self.seconds(0, 0.001), wait_s + float(self.dice.exponential(0.1)),
                self.seconds(0.01, 0.2), (tokens - 1) * self.seconds(0.01, 0.04), self.seconds(0, 0.002),
            ])  # fmt: skip
            names = ("arrived_at_s", "queued_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s",
                     "finished_at_s")  # fmt: skip
            found |= {"sent_at_s": round(sent_s, 6)}
            found |= {name: round(sent_s + float(step), 6) for name, step in zip(names, steps, strict=True)}
            if is_open:
                lag_s = self.seconds(0, traits.get("lag_s", 0.004))
                found["due_at_s"] = 0.0 if load["arrival"] == "all_at_once" else round(sent_s - lag_s, 6)
            if traits.get("is_server"):
                found["queued_at_s"] = found["scheduled_at_s"] = None
            if traits.get("stamps"):
                stamps = np.linspace(found["first_token_at_s"], found["last_token_at_s"], tokens)
                stamps = np.repeat(stamps[::2], 2)[:tokens] if traits.get("bursts") else stamps
                jitter = np.sort(self.dice.uniform(0, 1e-3, len(stamps))) if not traits.get("bursts") else 0
                found["token_at_s"] = (stamps + jitter).round(6).tolist()
        if traits.get("is_server"):
            found["retries"] = int(self.chance("retried"))
        else:
            found |= {"preemptions": int(self.dice.random() < 0.05), "cached_tokens": 4 * int(self.dice.integers(2))}
        if traits.get("media") and self.dice.random() < 0.8:
            kind = self.dice.integers(3)
            sizes = (
                {"images": 2, "image_pixels": int(self.dice.integers(10_000, 900_000))},
                {"audios": 1, "audio_s": self.seconds(1, 30)},
                {"videos": 1, "video_frames": 8, "video_s": self.seconds(1, 30)},
            )[kind]
            known = {} if traits.get("is_server") else {"media_tokens": int(self.dice.integers(1, 5))}
            found |= sizes | known | {"media_bytes": 1000, "media_prepare_s": self.seconds(0.01, 0.3)}
        if traits.get("drafts"):
            accepted = [int(self.dice.integers(1, 9)) for _ in range(4)]
            found |= {"acceptance_histogram": accepted, "draft_tokens": 3 * sum(accepted)}
        return found


def insert_rows(connection: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    """Insert raw rows by name; columns that are not drawn are NULL."""
    for table, drawn in rows.items():
        columns = dict.fromkeys(name for row in drawn for name in row)
        values = pa.table({name: [row.get(name) for row in drawn] for name in columns})
        connection.register("drawn", values)
        connection.execute(f"insert into raw.{table} by name from drawn")
        connection.unregister("drawn")


def read_fixture(connection: duckdb.DuckDBPyConnection) -> None:
    """Insert the stored rows of all runs but the large one."""
    for file in sorted(FOLDER.glob("*.parquet")):
        if file.stem != "expected":
            connection.execute(f"insert into raw.{file.stem} by name from '{file}'")


def _draw_all() -> Iterator[Rows]:
    for run_id, traits in CASES.items():
        if run_id != LARGE:
            yield draw_run(run_id, **traits)


def main() -> None:
    """Draw the rows, compute their metrics, and write both. With `expected`, only compute the metrics."""
    from assayline.store.database import apply_schema
    from assayline.store.metrics import store_metrics

    connection = duckdb.connect()
    apply_schema(connection)
    if sys.argv[1:] != ["expected"]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for rows in _draw_all():
            insert_rows(connection, rows)
        for table in sorted({table for rows in _draw_all() for table in rows}):
            filled = [
                column
                for (column,) in connection.execute(
                    "select column_name from duckdb_columns() where schema_name = 'raw' and table_name = ?", [table]
                ).fetchall()
                if connection.execute(f"select count({column}) from raw.{table}").fetchall() != [(0,)]
            ]
            connection.execute(
                f"copy (select {', '.join(filled)} from raw.{table} order by run_id) "
                f"to '{FOLDER / table}.parquet' (compression zstd)"
            )
    else:
        read_fixture(connection)
    insert_rows(connection, draw_run(LARGE, **CASES[LARGE]))
    store_metrics(connection, list(CASES))
    connection.execute(
        "copy (select * exclude (source) from raw.metric_values order by run_id, metric, statistic, detail) "
        f"to '{FOLDER}/expected.parquet' (compression zstd)"
    )


if __name__ == "__main__":
    main()
