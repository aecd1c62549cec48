"""A database of ours in DuckDB 1.5, the version of many shells, notebooks and drivers: all of main is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from judge_kit import PLACES, give_judge, vote
from row_kit import Store

from assayline.store.database import connect
from assayline.store.metrics import ensure_metrics

pytestmark = [pytest.mark.slow, pytest.mark.rare]

OLDER = "duckdb==1.5.6"
CACHE = Path(__file__).resolve().parents[2] / ".cache"

READ = """
import json, sys
import duckdb

ARGUMENTS = json.loads(sys.argv[2])
connection = duckdb.connect(sys.argv[1], read_only=True, config={"threads": 1})
connection.execute("set enable_progress_bar = false")
views = connection.execute(
    "select schema_name || '.' || view_name from duckdb_views() where schema_name = 'main' and not internal"
).fetchall()
macros = connection.execute(
    "select schema_name || '.' || function_name, function_type, parameters from duckdb_functions() "
    "where schema_name = 'main' and not internal and function_type in ('macro', 'table_macro')"
).fetchall()
queries = {name: f"from {name}" for (name,) in views}
for name, kind, parameters in macros:
    call = f"{name}({', '.join(ARGUMENTS[parameter] for parameter in parameters)})"
    queries[call] = f"from {call}" if kind == "table_macro" else f"select {call}"

def round_floats(value):
    if isinstance(value, dict):
        return {key: round_floats(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_floats(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else str(value)

found = {}
for name, query in queries.items():
    try:
        found[name] = sorted((round_floats(row) for row in connection.execute(query).fetchall()), key=str)
    except duckdb.Error as error:
        found[name] = str(error).splitlines()[0]
print(json.dumps([duckdb.__version__, found]))
"""
"""Rows of each, or the first line of its error; both sides of the comparison run it."""

STORE = """
import sys
from pathlib import Path
import duckdb
from assayline.store.database import connect
from assayline.store.metrics import ensure_metrics

with connect(Path(sys.argv[1]), 0) as connection:
    ensure_metrics(connection)
    rows = connection.execute("select * from raw.metric_values order by run_id, metric, statistic, detail").fetchall()
    rows = [tuple(f"{value:.9g}" if isinstance(value, float) else value for value in row) for row in rows]
    print(duckdb.__version__, *rows, sep="\\n")
"""

ARGUMENTS = {
    "candidate": "'one'",
    "baseline": "'two'",
    "pair_by": "'row'",
    "baseline_repeats": "['two']",
    "candidate_repeats": "['one']",
    "spec": "'spec'",
}


@pytest.fixture(scope="module")
def older_duckdb() -> Path:
    """A folder with DuckDB 1.5, installed aside once. Skips where no package index has it."""
    home = CACHE / OLDER.replace("==", "-")
    if not (home / "ready").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", home, OLDER]
        pip = subprocess.run(command, capture_output=True, text=True, check=False)
        if pip.returncode:
            pytest.skip(f"pip cannot install {OLDER}: {(pip.stderr.splitlines() or ['no reason'])[-1]}")
        (home / "ready").touch()
    return home


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two runs with answers, scores, a load, samples, prices and judges, of which one is kept."""
    path = tmp_path / "assayline.duckdb"
    stamps = [
        {
            "due_at_s": 1.0 * i,
            "sent_at_s": 1.0 * i,
            "arrived_at_s": 1.0 * i,
            "queued_at_s": 1.0 * i,
            "scheduled_at_s": i + 0.1,
            "first_token_at_s": i + 0.2,
            "last_token_at_s": i + 0.9,
            "finished_at_s": i + 1.0,
            "prompt_tokens": 7,
            "output_tokens": 3,
            "token_at_s": [i + 0.2, i + 0.5, i + 0.9],
            "text": str(i),
            "finish_reason": "stop",
        }
        for i in range(60)
    ]
    spec = {"price": {"currency": "EUR", "per_gpu_hour": 2.0, "gpus": 1, "per_kwh": 0.3}}
    with connect(path, wait_s=10) as connection:
        store = Store(connection)
        for run_id in ("one", "two"):
            run = {"run_id": run_id}
            store.given_answers(*stamps, run_id=run_id, target="1")
            connection.execute(
                "update runs set spec_json = ?, benchmark_id = 'bench', model_id = 'digest' where run_id = ?",
                [json.dumps(spec), run_id],
            )
            store.given("scorers", run)
            scores = [{**run, "prompt_id": str(i), "value": float(i % 2)} for i in range(60)]
            store.given("scores", *scores)
            store.given("loads", run)
            store.given("slos", {**run, "metric": "ttft_s", "limit_s": 0.3})
            events = {"opened": 0.0, "closed": 61.0}
            store.given("engine_events", *({**run, "event": event, "at_s": at_s} for event, at_s in events.items()))
            store.given(
                "telemetry", *({**run, "at_s": float(i), "engine_steps": i, "loop_lags_s": [0.001]} for i in range(60))
            )
            joules = [{**run, "at_s": float(i), "power_watts": 100.0, "energy_joules": 100.0 * i} for i in range(62)]
            store.given("device_telemetry", *joules)
        give_judges(store)
        ensure_metrics(connection)
    return path


def give_judges(store: Store) -> None:
    """Two judges of one run, which ask twice and have labels, and one of pairs in both orders."""
    for judge, cycle in (("judge", 3), ("second judge", 4)):
        votes = [
            vote(str(i), ("correct", "incorrect")[(i + repeat) % cycle == 0], ("correct", "incorrect")[i % 3 == 0],
                 judge=judge, run="labelled", repeat=repeat)
            for i in range(30) for repeat in range(2)
        ]  # fmt: skip
        give_judge(store, votes)
    votes = [
        vote(str(i), ("first", "second", "tie")[i % 3 if first == "a" else i % 2], judge="pairs", run="one",
             other="two", first=first)
        for i in range(30) for first in "ab"
    ]  # fmt: skip
    give_judge(store, votes, values=PLACES)


def read_everything(path: Path, folder: Path | None = None) -> tuple[str, dict[str, object]]:
    environ = {**os.environ, "PYTHONPATH": str(folder or "")}
    command = [sys.executable, "-c", READ, str(path), json.dumps(ARGUMENTS)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version, found = json.loads(done.stdout)
    return version, found


def test_every_table_and_function_has_the_same_rows_in_duckdb_1_5(path: Path, older_duckdb: Path) -> None:
    version, found = read_everything(path, older_duckdb)
    assert version.startswith("1.5.")
    errors = {name: rows for name, rows in found.items() if isinstance(rows, str)}
    assert errors == {}
    assert len(found) >= 20
    assert len(found["main.judgement"]) == 180
    assert found == read_everything(path)[1]


def test_duckdb_1_5_stores_the_same_metrics(path: Path, older_duckdb: Path) -> None:
    own, *rows = store_again(path)
    older, *older_rows = store_again(path, older_duckdb)
    assert (own > "2", older[:4], len(rows) > 100) == (True, "1.5.", True)
    assert older_rows == rows


def store_again(path: Path, folder: Path | None = None) -> list[str]:
    """Version of DuckDB, and the stored metrics; another version than the last one computes them again."""
    environ = {**os.environ, "PYTHONPATH": str(folder or "")}
    done = subprocess.run([sys.executable, "-c", STORE, path], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
