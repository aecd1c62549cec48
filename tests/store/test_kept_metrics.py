"""When a run's metrics are kept, and who makes them be forgotten: real runs on the fake engine."""

from pathlib import Path
from typing import Any

import duckdb
import pytest
from record_kit import completion_of
from run_kit import FAKE, complete, copy_run, query, settings_in, vanish, work

from assayline.errors import RunFailedError, StoreError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.rebuild import rebuild_run
from assayline.runs.manifest import read_manifest
from assayline.settings import Settings
from assayline.spec.criteria import Contains
from assayline.spec.evaluation import EvalSpec
from assayline.store.database import Connection, connect, transaction
from assayline.store.ingest import load_parts, reload_parts
from assayline.store.metrics import is_kept, keep_metrics, read_run_summary
from assayline.store.parts import TABLES, write_part
from assayline.store.runs import delete_run, save_run
from assayline.store.scoring import score_run
from flows.cli import run

pytestmark = pytest.mark.slow


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


def kept_runs(settings: Settings) -> list[str]:
    return [run_id for (run_id,) in query(settings, "select run_id from kept_metrics.kept_runs order by run_id")]


def test_a_run_that_has_ended_is_kept(run_dir: Path, settings: Settings) -> None:
    assert kept_runs(settings) == [run_dir.name]
    assert query(settings, "select answered_requests from kept_metrics.run_summary") == [(12,)]


def test_a_run_that_failed_is_kept_and_forgotten_when_it_is_taken_up(spec: EvalSpec, settings: Settings) -> None:
    begun = begin_evaluation(spec, settings)
    counts = begun.prepare()
    with pytest.raises(RunFailedError):
        begun.finish(counts)
    assert kept_runs(settings) == [begun.run_id]
    vanish(begun)
    again = begin_evaluation(spec, settings)
    assert again.run_id == begun.run_id
    assert kept_runs(settings) == [], "attempt 2 is in the table runs, and so the old summary is not true any more"
    counts = again.prepare()
    work(again)
    assert again.try_load() is None
    assert kept_runs(settings) == []
    assert query(settings, "select answered_requests, attempts from run_summary") == [(12, 2)]
    again.finish(counts)
    assert kept_runs(settings) == [begun.run_id]
    assert query(settings, "select answered_requests, attempts from run_summary") == [(12, 2)]


def test_a_run_that_was_stopped_is_computed(spec: EvalSpec, settings: Settings) -> None:
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    evaluation.abandon("cancelled")
    assert kept_runs(settings) == []
    assert query(settings, "select state, missing_requests from run_summary") == [("cancelled", 12)]


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
def test_whoever_changes_a_run_makes_its_metrics_computed_again(change: Any, run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        assert is_kept(connection, run_dir.name)
        change(connection, run_dir)
        assert not is_kept(connection, run_dir.name)
        left = connection.execute("select count(*) from kept_metrics.run_summary").fetchall()
        assert left == [(0,)]


def test_a_change_that_is_undone_leaves_what_is_kept(run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        with pytest.raises(ZeroDivisionError), transaction(connection):
            delete_run(connection, run_dir.name, list(TABLES))
            raise ZeroDivisionError
        assert is_kept(connection, run_dir.name)
        assert read_run_summary(connection, run_dir.name)["answered_requests"] == 12


def test_nothing_new_to_load_forgets_nothing(run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        assert load_parts(connection, run_dir.name, run_dir) == 0
        assert is_kept(connection, run_dir.name)


def test_a_rebuilt_run_is_kept_as_it_was(run_dir: Path, settings: Settings) -> None:
    models = ("run_summary", "latency_percentile", "accuracy", "timeline")
    before = [query(settings, f"select * from kept_metrics.{model} order by all") for model in models]
    rebuild_run(run_dir, settings.database_path, 10)
    assert kept_runs(settings) == [run_dir.name]
    assert [query(settings, f"select * from kept_metrics.{model} order by all") for model in models] == before


def test_a_run_with_an_answer_twice_is_never_kept(run_dir: Path, settings: Settings) -> None:
    with connect(settings.database_path, 10) as connection:
        connection.execute("insert into completions from completions limit 1")
        assert keep_metrics(connection, run_dir.name) is False
        assert not is_kept(connection, run_dir.name)
        assert connection.execute("select duplicate_completions from request_integrity").fetchall() == [(1,)]
        assert connection.execute("select count(*) from stg_requests").fetchall() == [(12,)]


def test_changed_models_keep_nothing_of_the_old_ones(run_dir: Path, settings: Settings) -> None:
    with duckdb.connect(settings.database_path) as connection:
        connection.execute("update schema_version set models_digest = 'of another version'")
    with connect(settings.database_path, 10) as connection:
        assert not is_kept(connection, run_dir.name)
        assert read_run_summary(connection, run_dir.name)["answered_requests"] == 12


def test_a_database_cannot_have_the_name_of_a_part_of_it(tmp_path: Path) -> None:
    for name in ("live_metrics.duckdb", "kept_metrics.duckdb"):
        with pytest.raises(StoreError, match=f"cannot be called {name}"), connect(tmp_path / name, 0):
            pass


def test_the_command_keeps_all_or_some(
    spec: EvalSpec, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("ASSAYLINE_DATABASE", str(settings.database_path))
    assert run("keep", ["--all"]) == 6
    assert "There is no database" in capsys.readouterr().err
    run_id = complete(spec, settings).run_id
    under_way = begin_evaluation(spec.model_copy(update={"name": "other"}), settings)
    under_way.prepare()
    with duckdb.connect(settings.database_path) as connection:
        connection.execute("update schema_version set models_digest = 'of another version'")
    assert run("keep", ["--all"]) == 0
    assert f"1/1 {run_id}: kept" in capsys.readouterr().out
    assert kept_runs(settings) == [run_id], "a run under way is not kept"
    assert run("keep", ["--all"]) == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert run("keep", [run_id]) == 0
    assert kept_runs(settings) == [run_id]
    assert run("keep", ["elsewhere"]) == 6
    assert "no run elsewhere" in capsys.readouterr().err
    for wrong in ([], [run_id, "--all"]):
        with pytest.raises(SystemExit):
            run("keep", wrong)
    under_way.abandon("cancelled")
