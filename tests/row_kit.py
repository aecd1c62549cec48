"""Given rows, expect rows: the way every SQL model is tested; and what reports are made of: sad runs, nights, a sweep.

A test names only the columns it is about. `given` fills columns that the raw table requires, `expect` compares the
columns that the expected rows name, in any order of rows, with None for NULL and nothing else for it.
"""

import functools
import html
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import altair
import duckdb
import numpy as np
import pyarrow
import pytest
from run_kit import fake_spec

from assayline.benchmark.campaign import Campaign, Cell, alternate, new_campaign
from assayline.settings import Settings
from assayline.spec.identity import canonical_json
from assayline.store import measure
from assayline.store.database import SQL_FOLDER, connect, transaction
from assayline.store.measure import list_statements, run_tables
from assayline.store.metrics import forget_metrics, list_unmeasured, store_metrics
from assayline.store.parts import TABLES

Row = dict[str, Any]

RUN = "run"
DEFAULTS: dict[str, Row] = {
    "runs": {
        "name": "spec",
        "prompt_set": "set",
        "model": "model",
        "spec_hash": "hash",
        "spec_json": "{}",
        "assayline_version": "0",
        "host_name": "host",
        "machine": "host",
        "purpose": "evaluate",
        "attempt": 1,
        "state": "completed",
        "started_at": datetime(2026, 1, 1),
    },
    "prompts": {"prompt_id": "p", "occurrence": 0, "source_row": 0, "messages_json": "[]", "metadata_json": "{}"},
    "requests": {"prompt_id": "p", "occurrence": 0, "repeat_index": 0, "sampling_json": "{}"},
    "completions": {"worker": "w", "engine_generation": 0, "window_requests": 8},
    "scorers": {
        "scorer": "exact_match",
        "kind": "exact_match",
        "ordinal": 0,
        "arguments_json": "{}",
        "assayline_version": "0",
        "scored_at": datetime(2026, 1, 1),
        "definition": "digest",
    },
    "scores": {"scorer": "exact_match", "prompt_id": "p", "occurrence": 0, "repeat_index": 0},
    "engine_events": {"worker": "w", "attempt": 1, "engine_generation": 0, "at_s": 0.0, "details_json": "{}"},
    "loads": {"arrival": "poisson", "warmup_s": 0.0, "cooldown_s": 0.0},
    "slos": {"slo": "interactive"},
    "device_telemetry": {"worker": "w", "device": "cuda-0"},
    "tokens": {"position": 0},
    "verdicts": {"baseline_run_id": "base", "judged_at": datetime(2026, 1, 1), "ordinal": 0, "unit": "", "words": "."},
    "telemetry": {"worker": "w", "engine_generation": 0, "at_s": 0.0, "in_flight_requests": 0, "output_tokens": 0},
}
NAME = "nightly"
FIRST = datetime(2026, 10, 1, 1, 30)
NIGHT_PROMPTS = 40
NIGHT_BEFORE, NIGHT = "20261114-013000-nightly-0001", "20261121-013000-nightly-0002"
"""Runs of `examples/two_weeks.py`."""
BENCHMARK = "20261121-120000-benchmark-sweep-0001"
CAPACITY_PER_S = 10.0
"""What the sweep's engine serves: loads are below and above it."""
ALONE_S = 0.25
"""How long a request takes that has the engine for itself."""
FIRST_TOKEN_S = 0.05
REQUESTS = 200
RATES = (4.0, 6.0, 8.0, 9.5, 12.0)
SLOS = (
    {"slo": "interactive", "metric": "ttft_s", "limit_s": 0.2},
    {"slo": "patient", "metric": "e2e_s", "limit_s": 2.0},
)


def as_rows(columns: str, *rows: Sequence[Any]) -> list[Row]:
    """Rows of a table whose column names are separated by spaces."""
    return [dict(zip(columns.split(), row, strict=True)) for row in rows]


READ_METRICS = ("metric_values", "run_metric", "run_conditions", "load_point", "accuracy", "metric_value", "run")
"""What is read from stored metrics."""


class Store:
    """A database with the whole schema and, to begin with, no rows."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def given(self, table: str, *rows: Row, run_id: str = RUN) -> None:
        """Insert the rows, each merged into the table's defaults."""
        full = [{"run_id": run_id, **DEFAULTS[table], **row} for row in rows]
        for columns in dict.fromkeys(tuple(row) for row in full):
            alike = [row for row in full if tuple(row) == columns]
            values = pyarrow.table({column: [row[column] for row in alike] for column in columns})
            self.connection.register("given_rows", values)
            self.connection.execute(f"insert into {table} ({', '.join(columns)}) from given_rows")
            self.connection.unregister("given_rows")
        forget_metrics(self.connection, *{row["run_id"] for row in full})
        if table in TABLES:
            parts = [list({row["run_id"] for row in full}), table]
            self.connection.execute("insert into loaded_parts select distinct unnest(?), 'by hand', ?, 0", parts)

    def given_answers(
        self, *answers: Row, run_id: str = RUN, target: str | None = None, run: Row | None = None, **request: Any
    ) -> None:
        """A run with one prompt, one request and one completion per answer, named 0, 1, 2 … where not named.

        `run` has columns of the run, `request` those of each request.
        """
        named = [{"request_id": str(i), **answer} for i, answer in enumerate(answers)]
        ids = [answer["request_id"] for answer in named]
        self.given("runs", {"expected_requests": len(named), **(run or {})}, run_id=run_id)
        self.given("prompts", *({"prompt_id": one, "target": target} for one in ids), run_id=run_id)
        self.given("requests", *({"prompt_id": one, "request_id": one, **request} for one in ids), run_id=run_id)
        self.given("completions", *named, run_id=run_id)

    def given_case(self, run_id: str, given: Mapping[str, Any]) -> None:
        """Insert rows by table as a run: `answers`, `run` and `request` as given_answers has them."""
        tables = dict(given)
        run, request, answers = tables.pop("run", {}), tables.pop("request", {}), tables.pop("answers", None)
        if answers is not None:
            self.given_answers(*answers, run_id=run_id, target=tables.pop("target", None), run=run, **request)
        elif "run" in given:
            self.given("runs", run, run_id=run_id)
        for table, rows in tables.items():
            self.given(table, *([rows] if isinstance(rows, dict) else rows), run_id=run_id)

    def measure(self) -> None:
        """Store the metrics of the runs, as their ends do."""
        if run_ids := list_unmeasured(self.connection):
            store_metrics(self.connection, run_ids)

    def rows(self, view: str, *columns: str, run_id: str | None = RUN) -> list[Row]:
        """The rows of a page's query of one run, or of a view of one run or, with None, of all."""
        if (SQL_FOLDER / "queries" / f"{view}.sql").exists():
            with transaction(self.connection), run_tables(self.connection, run_id or RUN):
                found = self.read((SQL_FOLDER / "queries" / f"{view}.sql").read_text("utf-8"))
            return [{name: row[name] for name in columns} if columns else row for row in found]
        if view in READ_METRICS:
            self.measure()
        where = "" if run_id is None else "where run_id = ?"
        query = f"select {', '.join(columns) or '*'} from {view} {where}"
        return self.read(query, *([] if run_id is None else [run_id]))

    def values(self, run_id: str = RUN) -> dict[str, Row]:
        """Stored metrics by `metric statistic of detail`; a mean or a total has no statistic, a run's own no detail."""
        self.measure()
        rows = self.read("select * from metric_values where run_id = ?", run_id)
        plain = ("mean", "total")
        return {
            row["metric"]
            + ("" if row["statistic"] in plain else f" {row['statistic']}")
            + (f" of {row['detail']}" if row["detail"] else ""): row
            for row in rows
        }

    def value(self, key: str, run_id: str = RUN) -> Any:
        """The value of a stored metric; one without a row is None."""
        return self.values(run_id).get(key, {}).get("value")

    def expect_values(self, expected: Mapping[str, Any], run_id: str = RUN) -> None:
        """Stored metrics are these: by key of `values`, a value, or a value and its n. None may be absent.

        A key that ends in ` low` or ` high` is that end of the interval.
        """
        values = self.values(run_id)
        found, close = {}, {}
        assert {key.split()[0] for key in expected if "@" not in key} <= list_metric_words(), "no such metric"
        for key, wanted in expected.items():
            name, _, end = key.rpartition(" ")
            row = values.get(name, {}) if end in ("low", "high") else values.get(key, {})
            value = row.get(end if end in ("low", "high") else "value")
            found[key] = (value, row.get("n")) if isinstance(wanted, tuple) else value
            close[key] = (_close_to(wanted[0]), wanted[1]) if isinstance(wanted, tuple) else _close_to(wanted)
        assert found == close, run_id

    def expect_case(self, run_id: str, expected: Mapping[str, Any]) -> None:
        """Lists are rows of the view or query of that name; all else are values of metrics."""
        for view, rows in expected.items():
            if isinstance(rows, list):
                self.expect(view, *rows, run_id=run_id)
        if values := {key: one for key, one in expected.items() if not isinstance(one, list)}:
            self.expect_values(values, run_id)

    def read(self, query: str, *values: Any) -> list[Row]:
        """The rows of any query."""
        result = self.connection.execute(query, list(values))
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def row(self, view: str, *columns: str, run_id: str = RUN) -> Row:
        """The only row of a view that has one per run."""
        (row,) = self.rows(view, *columns, run_id=run_id)
        return row

    def expect(self, view: str, *expected: Row, run_id: str | None = RUN) -> None:
        """The view has these rows and no others; all expected rows name the same columns."""
        found = self.rows(view, *(expected[0] if expected else ()), run_id=run_id)
        assert len(found) == len(expected), f"{view}: {found}"
        for one, other in zip(_sorted(found), _sorted(expected), strict=True):
            assert one == {column: _close_to(value) for column, value in other.items()}, view


@functools.cache
def list_metric_words() -> set[str]:
    """Words of the statements and of their Python, among them the names of all metrics."""
    return set(re.findall(r"\w+", "".join([*list_statements().values(), inspect.getsource(measure)])))


def give_run_metric(connection: duckdb.DuckDBPyConnection, *rows: Row) -> None:
    """Put a table with these rows in the place of the view `run_metric`: the view itself is tested elsewhere."""
    columns = (
        "run_id varchar, metric varchar, value double, unit varchar, higher_is_better boolean, low double, high double"
    )
    (is_view,) = connection.execute("select count(*) from duckdb_views() where view_name = 'run_metric'").fetchall()[0]
    connection.execute(f"drop {'view' if is_view else 'table'} internal.run_metric")
    connection.execute(f"create table internal.run_metric ({columns})")
    given = [{"unit": "u", "higher_is_better": True, "low": None, "high": None, **row} for row in rows]
    if given:
        connection.register("given_rows", pyarrow.Table.from_pylist(given))
        connection.execute("insert into internal.run_metric by name from given_rows")
        connection.unregister("given_rows")


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, str(type(value)), value) for value in row.values()])


def _close_to(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value


class Sad:
    """A database for runs made by hand: a state, and one prompt, request and answer per row given."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def given(self, run_id: str, state: str, *answers: Row, message: str | None = None) -> None:
        spec = {"sampling": {}, "engine": {"args": {}, "backend": "fake", "mode": "continuous"}, "workers": 1}
        run = {"name": f"name of {run_id}", "state": state, "message": message, "spec_json": json.dumps(spec)}
        with connect(self.settings.database_path, 10) as connection:
            store = Store(connection)
            store.given("runs", {"run_id": run_id, "expected_requests": len(answers), **run})
            for i, answer in enumerate(answers):
                score, rendered = answer.pop("score", None), answer.pop("rendered", f"prompt {i}")
                keys = {"run_id": run_id, "prompt_id": f"p{i}"}
                store.given("prompts", {**keys, "source_row": i, "target": answer.pop("target", None)})
                store.given("requests", {**keys, "request_id": f"r{i}", "rendered": rendered})
                if answer:
                    known = {"run_id": run_id, "worker": "worker-0", "request_id": f"r{i}"}
                    store.given("completions", {**known, **answer})
                if score is not None:
                    store.given("scores", {**keys, "value": score, "extracted": "x"})
            if answers:
                store.given("scorers", {"run_id": run_id})


@dataclass(frozen=True)
class NightOf:
    """One night: what was measured, and under which conditions."""

    right: int = 32
    """Prompts answered right, of NIGHT_PROMPTS."""
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
        NightOf(right=int(dice.binomial(NIGHT_PROMPTS, 0.8)), request_s=float(np.exp(dice.normal(0, 0.02))), **changes)
        for _ in range(count)
    ]


def given_nights(settings: Settings, nights: Sequence[NightOf], first: int = 0) -> list[str]:
    """Stores the nights; their run ids, in order. `first` is the number of the first one."""
    run_ids = []
    tables: dict[str, list[Row]] = {}
    started_at = FIRST + timedelta(days=first)
    for number, night in enumerate(nights, first):
        run_id = f"night-{number:03}"
        run_ids.append(run_id)
        for table, rows in _rows_of_night(run_id, night, started_at).items():
            tables.setdefault(table, []).extend(rows)
        started_at += timedelta(days=night.days_later)
    _store(settings, tables)
    return run_ids


def _store(settings: Settings, tables: Mapping[str, Sequence[Row]]) -> None:
    with connect(settings.database_path, 10) as connection:
        for table, rows in tables.items():
            Store(connection).given(table, *rows)


def _rows_of_night(run_id: str, night: NightOf, started_at: datetime) -> dict[str, list[Row]]:
    spec = {"name": night.name, "sampling": {"temperature": night.temperature}, "gate": {"baseline": night.baseline}}
    keys = [{"run_id": run_id, "prompt_id": f"{night.prompts}{i}"} for i in range(NIGHT_PROMPTS)]
    details = {"vllm_version": night.vllm, "device_name": "X1", "driver_version": night.driver}
    starts = [20 + i * night.request_s for i in range(NIGHT_PROMPTS)]
    ended_at_s = starts[-1] + 2 * night.request_s
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
                "attempt": night.attempt,
                "state": night.state,
                "message": None if night.state == "completed" else "the disk was full",
                "started_at": started_at,
                "expected_requests": NIGHT_PROMPTS,
            }
        ],
        "prompts": [{**key, "source_row": i} for i, key in enumerate(keys)],
        "requests": [{**key, "request_id": f"r{i}"} for i, key in enumerate(keys)],
        "completions": [
            {
                "run_id": run_id,
                "request_id": f"r{i}",
                "window_requests": 1,
                "arrived_at_s": start,
                "first_token_at_s": start + 0.1 * night.request_s,
                "last_token_at_s": start + night.request_s,
                "finished_at_s": start + night.request_s,
                "output_tokens": 11,
                "text": "x",
            }
            for i, start in enumerate(starts)
        ],
        "engine_events": [
            {
                "run_id": run_id,
                "event": event,
                "at_s": at_s,
                "details_json": json.dumps(details) if event == "opened" else "{}",
            }
            for event, at_s in (("opened", 10.0), ("warmed_up", 15.0), ("closed", ended_at_s))
        ],
        "scorers": [{"run_id": run_id, "scored_at": started_at}],
        "scores": [{**key, "value": float(i < night.right)} for i, key in enumerate(keys)],
        "verdicts": [
            {
                "run_id": run_id,
                "baseline_run_id": "night-000",
                "judged_at": started_at,
                "ordinal": ordinal,
                "limit_on": limit_on,
                "verdict": verdict,
                "unit": "share",
                "words": f"{limit_on}: {verdict}.",
            }
            for ordinal, (limit_on, verdict) in enumerate(night.verdict.items())
        ],
    }


def given_sweep(
    settings: Settings,
    rates: Sequence[float] = RATES,
    slos: Sequence[Row] = SLOS,
    late_at: float | None = None,
    failed: Sequence[str] = (),
) -> list[str]:
    """Runs of a benchmark: one at a time, each rate, and all at once. Their ids, in this order.

    At the rate `late_at` every other request is sent half a second late. `failed` are names of runs that did not
    complete.
    """
    loads: list[tuple[str, Row, list[float]]] = [
        ("synchronous", {"arrival": "concurrency", "concurrency": 1}, [ALONE_S * i for i in range(REQUESTS)]),
        ("throughput", {"arrival": "all_at_once"}, [0.0] * REQUESTS),
        *(
            (f"{rate:g}/s", {"arrival": "constant", "requests_per_s": rate}, [i / rate for i in range(REQUESTS)])
            for rate in rates
        ),
    ]
    tables: dict[str, list[Row]] = {}

    def insert(table: str, **values: Any) -> None:
        tables.setdefault(table, []).append(values)

    run_ids = []
    for number, (name, load, dues) in enumerate(loads):
        run_id = f"run-{number}"
        run_ids.append(run_id)
        insert(
            "runs",
            run_id=run_id,
            name=f"sweep {name}",
            prompt_set="chat",
            model="models/small",
            state="failed" if name in failed else "completed",
            message="the engine died" if name in failed else None,
            benchmark_id=BENCHMARK,
            config_id=f"config-{number}",
            spec_json=json.dumps({"name": f"sweep {name}", "load": load}),
            started_at=datetime(2026, 11, 21) + timedelta(minutes=number),
            expected_requests=len(dues),
        )
        insert("loads", run_id=run_id, **load)
        insert("engine_events", run_id=run_id, event="warmed_up")
        for slo in slos:
            insert("slos", run_id=run_id, **slo)
        is_open = load["arrival"] != "concurrency"
        _insert_requests(insert, run_id, dues, is_open, late=late_at is not None and name == f"{late_at:g}/s")
    _store(settings, tables)
    return run_ids


def _insert_requests(insert: Any, run_id: str, dues: Sequence[float], is_open: bool, late: bool) -> None:
    """One engine with a queue: a request waits until its turn, one every 1 / CAPACITY_PER_S seconds."""
    free_s = 1.0
    for i, due in enumerate(dues):
        due_s = 1.0 + due
        sent_s = due_s + (0.5 if late and i % 2 else 0.001)
        begins_s = max(sent_s, free_s)
        free_s = begins_s + 1 / CAPACITY_PER_S
        keys = {"run_id": run_id, "request_id": f"r{i}"}
        insert("requests", **keys, prompt_id=f"p{i}", rendered="x")
        insert("prompts", run_id=run_id, prompt_id=f"p{i}", source_row=i)
        insert(
            "completions",
            **keys,
            window_requests=None if is_open else 1,
            due_at_s=due_s if is_open else None,
            sent_at_s=sent_s,
            arrived_at_s=sent_s,
            first_token_at_s=begins_s + FIRST_TOKEN_S,
            last_token_at_s=begins_s + ALONE_S,
            finished_at_s=begins_s + ALONE_S,
            output_tokens=11,
            text="y",
        )


def text_of(path: Path) -> str:
    """A page without its scripts and style: what a person can read of it."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)


def read_page(path: Path) -> str:
    """Read a page as a person does, with plain spaces between its words."""
    return re.sub(r"\s+", " ", html.unescape(text_of(path)).replace("\u00a0", " "))


def read_charts(path: Path) -> list[list[list[Row]]]:
    """By chart of a page and layer, the rows that are drawn. Every chart must be valid Vega-Lite."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" id="chart-\d+">(.*?)</script>', text, flags=re.S)
    specs = [json.loads(data) for data in found]
    for spec in specs:
        altair.LayerChart.from_dict(spec)
    return [[layer["data"]["values"] for layer in spec["layer"]] for spec in specs]


def plan_of(
    campaign_id: str, config_ids: Sequence[str], variants: Sequence[str], tasks: Sequence[str] = ("",), **more: Any
) -> Campaign:
    """A benchmark of these configurations, those of one variant together; `more` are fields of a campaign."""
    names = [(task, variant) for variant in variants for task in tasks]
    spec = fake_spec(name=more.get("name", "benchmark"))
    repeats = more.pop("repeats", 1)
    cells = [
        Cell(task=task, variant=variant, label=variant, config_id=one, repeats=repeats, spec_json=canonical_json(spec))
        for one, (task, variant) in zip(config_ids, names, strict=True)
    ]
    plan = new_campaign("benchmark", more.pop("name", "benchmark"), cells, alternate(cells, repeats), **more)
    return replace(plan, campaign_id=campaign_id)
