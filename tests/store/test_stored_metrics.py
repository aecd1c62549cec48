"""Metrics that are stored: the same as computed ones, for every view and run; forgotten with the rows they are of."""

import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from run_kit import FAKE, complete, completion_of, copy_run, query, settings_in, vanish, work

from assayline.errors import RunFailedError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.rebuild import rebuild_run
from assayline.runs.manifest import read_manifest
from assayline.settings import Settings
from assayline.spec.criteria import Contains
from assayline.spec.evaluation import EvalSpec
from assayline.store import metrics
from assayline.store.database import Connection, connect, find_in_schemas, list_models, transaction
from assayline.store.ingest import load_parts, reload_parts
from assayline.store.metrics import (
    COMPUTED_FOLDERS,
    REPORT_FOLDERS,
    SOURCE_FOLDER,
    compute_runs,
    ensure_metrics,
    forget_metrics,
    list_unmeasured,
    read_metric_table,
    store_metrics,
)
from assayline.store.parts import TABLES, write_part
from assayline.store.runs import delete_run, save_run
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
        delete_run(connection, f"run-{number:06d}", list(TABLES))
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


def read_all(connection: Connection, names: list[str]) -> dict[str, list[Any]]:
    return {name: rounded(connection.execute(f"select * from {name}").fetchall()) for name in names}


def rounded(rows: list[Any]) -> list[Any]:
    """Numbers to ten digits: DuckDB adds in no fixed order."""
    return sorted(
        (tuple(f"{value:.10g}" if isinstance(value, float) else value for value in row) for row in rows), key=str
    )


def list_names(*folders: str) -> list[str]:
    return [model.name for model in list_models().values() if model.is_view and model.folder in folders]


def test_computed_views_have_the_rows_that_they_have_in_the_database(runs: Connection) -> None:
    names = list_names(*COMPUTED_FOLDERS)
    expected = read_all(runs, names)
    empty = [name for name, rows in expected.items() if not rows]
    assert empty == ["rate_interval"], "it needs 200 results; without rows, nothing is proven"
    run_ids = [run_id for (run_id,) in runs.execute("select run_id from runs").fetchall()]
    for together in (run_ids[:1], run_ids[1:4], run_ids[4:]):
        with compute_runs(runs, together, (*REPORT_FOLDERS, SOURCE_FOLDER)):
            found = read_all(runs, names)
            runs.execute("delete from stg_requests")
            assert read_all(runs, names) == found, "a view was computed again"
        of_these = {name: [row for row in rows if row[0] in together] for name, rows in expected.items()}
        assert found == of_these, "the first column is run_id"
    assert read_all(runs, names[:1]) == {names[0]: expected[names[0]]}, "names have their old meaning"


def test_compute_runs_detaches_its_database_after_an_error(runs: Connection) -> None:
    with pytest.raises(ZeroDivisionError), compute_runs(runs, ["it's nobody"]):
        assert runs.execute("select * from run_summary").fetchall() == []
        raise ZeroDivisionError
    with pytest.raises(duckdb.Error), compute_runs(runs, ["run-000000"]):
        runs.execute("select no_such_column from runs")
    assert runs.execute("select count(*) > 5 from run_summary").fetchall() == [(True,)]


def test_stored_metrics_are_those_of_their_views_for_every_run_that_has_ended(runs: Connection) -> None:
    ensure_metrics(runs)
    assert list_unmeasured(runs) == []
    for name in list_names(SOURCE_FOLDER):
        columns = "run_id, metric, statistic, detail, value, low, high, n, unit, higher_is_better"
        stored = runs.execute(f"select {columns} from metric_values where source = '{name}'").fetchall()
        computed = runs.execute(f"select {columns} from {name} where run_id <> '{RUNNING}'").fetchall()
        assert rounded(stored) == rounded(computed), name
    facts = "select run_id, prompts_digest, is_longest_first from {} where run_id <> ? order by run_id"
    assert (
        runs.execute(facts.format("measured_runs"), [RUNNING]).fetchall()
        == runs.execute(facts.format("prepared_run"), [RUNNING]).fetchall()
    )
    twice = "select 1 from metric_values group by run_id, metric, statistic, detail having count(*) > 1"
    assert runs.execute(twice).fetchall() == []


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


def test_another_definition_or_duckdb_makes_metrics_outdated_and_a_comment_does_not(
    runs: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_metrics(runs, ["run-000000"])
    monkeypatch.setattr(metrics, "_define", metrics._define.__wrapped__)  # as another process reads them

    def is_outdated(old: str, new: str) -> bool:
        models = list_models()
        text = models["engine_history"].text
        assert old in text
        models["engine_history"] = dataclasses.replace(models["engine_history"], text=text.replace(old, new))
        with monkeypatch.context() as other:
            other.setattr(metrics, "list_models", lambda: models)
            return "run-000000" in list_unmeasured(runs)

    assert not is_outdated("-- Grain: ", "-- Each row: ")
    assert not is_outdated(
        "comment on view internal.engine_history is '", "comment on view internal.engine_history is 'Of "
    )
    assert is_outdated("sum(", "max(")
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
    statement = re.compile(r"\b(?:insert into|delete from|update(?= \S+ set (?!message\b))) ([\w{}.]+)")
    computed = {"verdicts", "rankings", "judge_audits", "comparisons"}
    no_rows_of_runs = {"baselines", "labels", "schema_version", "raw.schema_version", "raw.{table}"} | computed
    package = Path(__file__).parents[2]
    writers = {}
    for file in sorted(path for folder in ("assayline", "flows", "tasks") for path in (package / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if set(statement.findall(text)) - no_rows_of_runs and file.name != "metrics.py":
            writers[file.name] = text.count("forget_metrics(connection")
    assert writers == {"ingest.py": 1, "runs.py": 3, "scoring.py": 1}


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
        delete_run(connection, run_dir.name, list(TABLES))


def save(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        save_run(connection, read_manifest(run_dir), "{}")


def score(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        score_run(connection, run_dir.name, [Contains(kind="contains")])


def reload(connection: Connection, run_dir: Path) -> None:
    with transaction(connection):
        reload_parts(connection, run_dir.name, run_dir)


@pytest.mark.parametrize("change", [add_part, remove, save, score, reload])
def test_every_change_of_a_run_forgets_its_metrics(change: Any, run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        change(connection, run_dir)
    assert measured_runs(settings) == []
    assert query(settings, "from metric_values") == []


def test_a_change_that_is_undone_forgets_nothing(run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        with pytest.raises(ZeroDivisionError), transaction(connection):
            delete_run(connection, run_dir.name, list(TABLES))
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
