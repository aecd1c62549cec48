"""Metrics that are stored: once, of every run that has ended; forgotten with the rows they are of."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from run_kit import FAKE, complete, completion_of, copy_run, query, settings_in, vanish, work

from assayline.errors import RunFailedError
from assayline.run.begin import begin_evaluation
from assayline.run.rebuild import rebuild_run
from assayline.settings import Settings
from assayline.spec.criteria import Contains
from assayline.spec.evaluation import EvalSpec
from assayline.store import measure, metrics
from assayline.store.database import Connection, connect, find_in_schemas, transaction
from assayline.store.ingest import load_parts, reload_parts
from assayline.store.manifest import read_manifest
from assayline.store.metrics import (
    ensure_metrics,
    forget_metrics,
    list_unmeasured,
    read_metric_table,
    store_metrics,
)
from assayline.store.parts import TABLES, write_part
from assayline.store.runs import delete_runs, save_run
from assayline.store.scoring import score_run
from benchmarks.invented_runs import invent_runs

pytestmark = pytest.mark.slow

RUNS = 26
"""With errors, with an engine that died, with token times, and with none of it; see invented_runs."""
REQUESTS = 24
RUNNING = "run-000002"


@pytest.fixture(scope="module")
def database(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, two of them odd: one under way, one of nothing."""
    path = Path(shutil.copy(empty_database, tmp_path_factory.mktemp("stored") / "runs.duckdb"))
    connection = duckdb.connect(path)
    find_in_schemas(connection)
    invent_runs(connection, RUNS, REQUESTS)
    for number in (*range(10, 15), *range(16, 24)):  # what they have, others have too: 15 has an error row
        delete_runs(connection, [f"run-{number:06d}"], list(TABLES))
    connection.execute("update runs set state = 'running', finished_at = null where run_id = ?", [RUNNING])
    for table in ("prompts", "requests", "completions", "engine_events", "telemetry", "scorers", "scores"):
        connection.execute(f"delete from {table} where run_id = 'run-000005'")
    drafts = "draft_tokens = 9, acceptance_histogram = [1, 2, 1] where run_id = 'run-000001'"
    connection.execute(f"update completions set {drafts} and error_kind is null")
    connection.execute("delete from completions where run_id = 'run-000009' and hash(request_id) % 3 = 0")
    connection.close()
    return path


@pytest.fixture
def runs(database: Path, tmp_path: Path) -> Iterator[Connection]:
    """A database with runs that a test may change."""
    with duckdb.connect(shutil.copy(database, tmp_path / "runs.duckdb")) as connection:
        find_in_schemas(connection)
        yield connection


def test_metrics_of_every_run_that_has_ended_are_stored_once(runs: Connection) -> None:
    ensure_metrics(runs)
    assert list_unmeasured(runs) == []
    ended = runs.execute("select run_id from runs where state <> 'running' order by run_id").fetchall()
    assert runs.execute("select distinct run_id from metric_values order by run_id").fetchall() == ended
    twice = "select 1 from metric_values group by run_id, metric, statistic, detail having count(*) > 1"
    assert runs.execute(twice).fetchall() == []
    assert runs.execute("select count(*) from duckdb_tables() where database_name = 'temp'").fetchall() == [(0,)]


def test_a_run_that_cannot_be_measured_leaves_names_and_metrics_as_they_were(runs: Connection) -> None:
    ensure_metrics(runs, ["run-000000"])
    before = runs.execute("select * from metric_values order by all").fetchall()
    runs.execute("alter table raw.scores rename column value to worth")
    with pytest.raises(duckdb.Error):
        store_metrics(runs, ["run-000000"])
    assert runs.execute("select * from metric_values order by all").fetchall() == before
    assert runs.execute("select count(distinct run_id) > 5 from main.request").fetchall() == [(True,)]


def test_only_what_is_missing_is_computed(runs: Connection) -> None:
    ensure_metrics(runs, ["run-000000", "run-000001", RUNNING])
    assert runs.execute("select run_id from measured_runs order by run_id").fetchall() == [
        ("run-000000",),
        ("run-000001",),
    ]
    runs.execute("delete from completions where run_id = 'run-000000'")  # by hand, past all that forgets
    before = runs.execute("select * from metric_values where run_id = 'run-000000' order by all").fetchall()
    ensure_metrics(runs)
    assert runs.execute("select * from metric_values where run_id = 'run-000000' order by all").fetchall() == before
    with transaction(runs):
        forget_metrics(runs, "run-000000")
    ensure_metrics(runs)
    assert runs.execute("select * from metric_values where run_id = 'run-000000' order by all").fetchall() != before


def test_another_definition_or_duckdb_makes_metrics_outdated(runs: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_metrics(runs, ["run-000000"])
    monkeypatch.setattr(metrics, "define_metrics", measure.define_metrics.__wrapped__)  # as another process reads them
    assert "run-000000" not in list_unmeasured(runs)
    with monkeypatch.context() as other:
        statements = {**measure.list_statements(), "10_requests": "select 1"}
        other.setattr(measure, "list_statements", lambda: statements)
        assert "run-000000" in list_unmeasured(runs)
    monkeypatch.setattr(duckdb, "__version__", "9.7.1")
    assert "run-000000" in list_unmeasured(runs)
    ensure_metrics(runs, ["run-000000"])
    assert "run-000000" not in list_unmeasured(runs)


def test_the_metric_table_at_a_runs_end_is_the_one_that_is_read_later(runs: Connection) -> None:
    loads = [run_id for (run_id,) in runs.execute("select run_id from loads order by run_id").fetchall()]
    assert loads
    for run_id in (loads[0], "run-000000"):
        store_metrics(runs, [run_id])
        at_the_end = read_metric_table(runs, run_id)
        assert at_the_end == read_metric_table(runs, run_id)
        names = [row["metric"] for row in at_the_end]
        assert len(set(names)) == len(names)
        assert ("sent late, p99" in names) == (run_id == loads[0])


def test_every_change_of_rows_forgets_stored_metrics() -> None:
    """Fails when a module starts to write raw tables: call forget_metrics in the same transaction."""
    statement = re.compile(r"\b(?:insert into|delete from|update(?= \S+ set (?!(?:message|tags)\b))) ([\w{}.]+)")
    computed = {"verdicts", "rankings", "judge_audits", "comparisons"}
    no_rows_of_runs = {"baselines", "labels", "schema_version", "raw.schema_version", "raw.{table}"} | computed
    package = Path(__file__).parents[2]
    writers = {}
    for file in sorted(path for folder in ("assayline", "flows", "tasks") for path in (package / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if set(statement.findall(text)) - no_rows_of_runs and file.name != "metrics.py":
            writers[file.name] = text.count("forget_metrics(connection")
    assert writers == {"ingest.py": 1, "measure.py": 0, "runs.py": 3, "scoring.py": 1}


@pytest.fixture(scope="module")
def spec(make_spec: Any) -> EvalSpec:
    rows = [{"question": f"{number} + 1?", "answer": str(number % 3)} for number in range(12)]
    found: EvalSpec = make_spec(engine=FAKE, prompts={"source": {"kind": "inline", "rows": rows}}, shard_requests=4)
    return found


@pytest.fixture(scope="module")
def finished_run(spec: EvalSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = settings_in(tmp_path_factory.mktemp("finished"))
    return settings.run_dir(complete(spec, settings).run_id)


@pytest.fixture
def run_dir(finished_run: Path, settings: Settings) -> Path:
    """A completed run, with its database, that a test may change."""
    return copy_run(finished_run, settings)


def measured_runs(settings: Settings) -> list[str]:
    return [run_id for (run_id,) in query(settings, "select run_id from measured_runs order by run_id")]


ANSWERED = "select value from metric_values where metric = 'ok_requests'"


def test_a_run_that_failed_is_measured_and_forgotten_when_it_is_taken_up(spec: EvalSpec, settings: Settings) -> None:
    begun = begin_evaluation(spec, settings)
    counts = begun.prepare()
    with pytest.raises(RunFailedError):
        begun.finish(counts)
    assert query(settings, ANSWERED) == [(0,)]
    vanish(begun)
    again = begin_evaluation(spec, settings)
    assert again.run_id == begun.run_id
    assert measured_runs(settings) == [], "attempt 2 is in the table runs, so what was measured is not true any more"
    counts = again.prepare()
    work(again)
    assert again.try_load() is None
    assert measured_runs(settings) == []
    again.finish(counts)
    assert query(settings, ANSWERED) == [(12,)]


def test_a_run_that_was_stopped_is_measured_when_it_is_asked_for(spec: EvalSpec, settings: Settings) -> None:
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    evaluation.abandon("cancelled")
    assert measured_runs(settings) == []
    with connect(settings.database_path, 10) as connection:
        ensure_metrics(connection)
    assert query(settings, ANSWERED.replace("ok_", "missing_")) == [(12,)]


def add_part(connection: Connection, run_dir: Path) -> None:
    write_part(run_dir, "completions", "late", [completion_of("nobody")])
    load_parts(connection, run_dir.name, run_dir)


def remove(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        delete_runs(connection, [run_dir.name], list(TABLES))


def save(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        save_run(connection, read_manifest(run_dir), "{}")


def score(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        score_run(connection, run_dir.name, [Contains(kind="contains")])


def reload(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        reload_parts(connection, {run_dir.name: run_dir})


@pytest.mark.parametrize("change", [add_part, remove, save, score, reload])
def test_every_change_of_a_run_forgets_its_metrics(change: Any, run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        change(connection, run_dir)
    assert measured_runs(settings) == []
    assert query(settings, "from metric_values") == []


def test_a_change_that_is_undone_forgets_nothing(run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        with pytest.raises(ZeroDivisionError), transaction(connection):
            delete_runs(connection, [run_dir.name], list(TABLES))
            raise ZeroDivisionError
        assert load_parts(connection, run_dir.name, run_dir) == 0, "nothing new"
    assert query(settings, ANSWERED) == [(12,)]


def test_a_rebuilt_run_has_the_same_metrics(run_dir: Path, settings: Settings) -> None:
    before = query(settings, "from metric_values order by all")
    rebuild_run(run_dir, settings.database_path, 10)
    with connect(settings.database_path, 10) as connection:
        ensure_metrics(connection)
    assert query(settings, "from metric_values order by all") == before
    assert len(before) > 50


def test_an_answer_that_is_there_twice_counts_once(run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        connection.execute("insert into completions from completions limit 1")
        store_metrics(connection, [run_dir.name])
        assert connection.execute("select duplicate_completions from request_integrity").fetchall() == [(1,)]
    assert query(settings, ANSWERED) == [(12,)]
