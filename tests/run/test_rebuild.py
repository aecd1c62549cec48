"""A run's rows from its folder alone: equal to the original; what is damaged is named, set aside and asked again."""

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pytest
from run_kit import (
    FAKE,
    begin_and_vanish,
    check_sound,
    complete,
    completion_of,
    list_runs,
    query,
    read_line,
    start_python,
    vanish,
    work,
)

from assayline.errors import DamagedPartsError, DatabaseUnusableError, RunFailedError, StoreError
from assayline.flows.cli import run
from assayline.run.begin import begin_evaluation
from assayline.run.rebuild import rebuild_run
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.database import TABLE_VERSION, connect
from assayline.store.manifest import parse_scorer, read_manifest, write_manifest
from assayline.store.parts import (
    MERGED_NAME,
    TABLES,
    list_part_names,
    list_parts,
    merge_parts,
    split_parts,
    write_part,
)

pytestmark = pytest.mark.slow

LOAD_FOREVER = """
import sys
from pathlib import Path
from assayline.run.rebuild import rebuild_run
print("ready", flush=True)
while True:
    rebuild_run(Path(sys.argv[1]), Path(sys.argv[2]), 10)
"""


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    rows = [{"question": f"{number} + 1?"} for number in range(20)]
    rows[5] = rows[13] = {"question": "1 + 1 " * 500}
    prompts = {"source": {"kind": "inline", "rows": rows}, "columns": {}}
    found: EvalSpec = make_spec(engine=FAKE, prompts=prompts, shard_requests=8)
    return found


@pytest.fixture(scope="module")
def completed_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the data folder of a completed run is kept, once a test has made it."""
    return tmp_path_factory.mktemp("completed") / "data"


@pytest.fixture
def run_dir(spec: EvalSpec, settings: Settings, completed_data: Path) -> Path:
    """Folder of a completed run of 20 requests in three shards."""
    if completed_data.exists():
        shutil.copytree(completed_data, settings.data_dir)
    else:
        complete(spec, settings.model_copy(update={"flush_interval_s": 600.0}))  # its answers are one part
        shutil.copytree(settings.data_dir, completed_data)
    (run_id,) = list_runs(settings)
    split_parts(settings.run_dir(run_id))
    return settings.run_dir(run_id)


def content(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    with connect(database, 10, read_only=True) as connection:
        return {
            table: connection.execute(f"select * from {table} order by all").fetchall()
            for table in [*TABLES, "runs", "loaded_parts", "scores"]
        }


def cut(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-20])


def test_a_rebuilt_run_is_the_original_row_by_row(run_dir, spec, settings):
    original = content(settings.database_path)
    assert {table: len(rows) for table, rows in original.items() if table in ("prompts", "completions", "runs")} == {
        "prompts": 20,
        "completions": 20,
        "runs": 1,
    }
    settings.database_path.unlink()
    for change in (split_parts, merge_parts):  # the second time over its own rows
        change(run_dir)
        rebuilt = rebuild_run(run_dir, settings.database_path, 10)
        assert rebuilt.rows == {table: len(rows) for table, rows in original.items() if table in TABLES}
        assert content(settings.database_path) == original
    assert (rebuilt.missing, rebuilt.set_aside, rebuilt.manifest) == (0, [], read_manifest(run_dir))
    complete(spec, settings)
    original = content(settings.database_path)
    rebuild_run(run_dir, settings.database_path, 10)
    assert content(settings.database_path) == original, "the other run is left alone"


def test_a_rebuild_killed_at_any_moment_leaves_all_rows_or_the_old_ones(run_dir, settings):
    for _ in range(4):
        process = start_python(LOAD_FOREVER, run_dir, settings.database_path)
        assert read_line(process) == "ready"
        while not (run_dir / "flow.lock").exists():
            pass
        process.kill()
        process.communicate()
        check_sound(settings, 20)


def test_an_end_that_was_not_recorded_is_recorded(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    work(evaluation)
    vanish(evaluation)
    rebuilt = rebuild_run(evaluation.run_dir, settings.database_path, 10)
    assert rebuilt.manifest.state == "completed" and read_manifest(evaluation.run_dir) == rebuilt.manifest
    check_sound(settings, 20)


def test_an_unfinished_run_stays_unfinished_and_goes_on(spec, settings):
    before = begin_and_vanish(spec, settings, 3)
    rebuilt = rebuild_run(before.run_dir, settings.database_path, 10)
    assert (rebuilt.manifest.state, rebuilt.missing) == ("running", 15)  # two more are error rows
    assert complete(spec, settings).run_id == before.run_id
    check_sound(settings, 20)


def test_too_many_errors_stay_a_failure(make_spec, settings):
    prompts = {"source": {"kind": "inline", "rows": [{"question": "1 + 1 " * 500}] * 3}, "columns": {}}
    evaluation = begin_evaluation(make_spec(engine=FAKE, prompts=prompts), settings)
    with pytest.raises(RunFailedError):
        evaluation.finish(evaluation.prepare())
    before = read_manifest(evaluation.run_dir)
    assert rebuild_run(evaluation.run_dir, settings.database_path, 10).manifest == before


def test_a_run_killed_before_its_first_prompt_has_nothing_to_load(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    vanish(evaluation)
    assert rebuild_run(evaluation.run_dir, settings.database_path, 10).rows == {}
    assert query(settings, "select count(*) from runs") == [(0,)]


def completions_part(run_dir: Path) -> Path:
    return next(part for part in list_parts(run_dir, "completions") if part.name.startswith("flow"))


def prepare_part(run_dir: Path) -> Path:
    return next(part for part in list_parts(run_dir, "completions") if part.name.startswith("prepare"))


DAMAGED: dict[str, Callable[[Path], Path]] = {
    "answers": completions_part,
    "error rows": prepare_part,
    "requests": lambda run_dir: list_parts(run_dir, "requests")[1],
    "other requests": lambda run_dir: list_parts(run_dir, "requests")[0],
    "prompts": lambda run_dir: list_parts(run_dir, "prompts")[1],
    "events": lambda run_dir: list_parts(run_dir, "engine_events")[0],
}


@pytest.mark.parametrize(
    "names",
    [("answers", "requests", "other requests", "prompts", "events"), ("error rows",)],
    ids=["some of each table", "error rows"],
)
def test_rebuild_names_damaged_parts_and_rewrites_them_if_the_database_has_their_rows(run_dir, settings, names):
    """One after the other is named; then all are rewritten at once."""
    original = content(settings.database_path)
    parts = [DAMAGED[name](run_dir) for name in names]
    for part in parts:
        whole = part.read_bytes()
        cut(part)
        with pytest.raises(DamagedPartsError, match=rf"Part {part} could not be ingested: .*--set-aside"):
            rebuild_run(run_dir, settings.database_path, 10)
        assert part.exists()
        part.write_bytes(whole)
    assert content(settings.database_path) == original
    for part in parts:
        cut(part)
    rebuilt = rebuild_run(run_dir, settings.database_path, 10, set_aside=True)
    assert sorted(rebuilt.rescued) == sorted(parts) and all(part.exists() for part in parts)
    assert sorted(rebuilt.set_aside) == sorted(part.with_name(part.name + ".damaged") for part in parts)
    assert rebuilt.manifest.state == "completed"
    assert content(settings.database_path) == original


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_part_is_missed_when_the_database_is_gone_too(run_dir, settings, name):
    settings.database_path.unlink()
    part = DAMAGED[name](run_dir)
    cut(part)
    rebuilt = rebuild_run(run_dir, settings.database_path, 10, set_aside=True)
    assert not part.exists() and part.with_name(part.name + ".damaged").exists()
    assert rebuilt.manifest.state == ("completed" if name == "events" else "failed")
    assert (rebuilt.manifest.prompts is None) == (name not in ("answers", "events"))


def test_several_damaged_parts_are_all_named_and_what_they_had_is_asked_again(run_dir, spec, settings):
    parts = {name: find(run_dir) for name, find in DAMAGED.items()}
    for part in parts.values():
        cut(part)
    settings.database_path.unlink()
    with pytest.raises(DamagedPartsError, match="5 more are damaged too"):
        rebuild_run(run_dir, settings.database_path, 10)
    rebuilt = rebuild_run(run_dir, settings.database_path, 10, set_aside=True)
    assert len(rebuilt.set_aside) == 6 and rebuilt.manifest.state == "failed"
    assert complete(spec, settings).run_id == run_dir.name
    split_parts(run_dir)
    assert [name for name, part in parts.items() if not part.exists()] == ["answers", "events"]
    check_sound(settings, 20)


@pytest.mark.parametrize("has_rows", [True, False], ids=["in the database", "nowhere"])
def test_rebuild_restores_the_sources_of_damaged_merged_parts_or_their_requests_are_sent(
    run_dir, spec, settings, has_rows
):
    original = content(settings.database_path)
    names = {table: list_part_names(run_dir, table) for table in TABLES}
    merge_parts(run_dir)
    tables = ("completions", "requests") if has_rows else ("completions",)
    for table in tables:
        cut(run_dir / "parts" / table / MERGED_NAME)
    if not has_rows:
        settings.database_path.unlink()
    rebuilt = rebuild_run(run_dir, settings.database_path, 10, set_aside=True)
    assert [part.parent.name for part in sorted(rebuilt.rescued)] == (list(tables) if has_rows else [])
    if has_rows:
        assert content(settings.database_path) == original
        assert {table: list_part_names(run_dir, table) for table in tables} == {table: names[table] for table in tables}
    if not has_rows:
        assert complete(spec, settings).run_id == run_dir.name
    check_sound(settings, 20)


def test_a_part_with_other_columns_is_not_loaded_with_nulls(run_dir, settings):
    part = part_of_run(run_dir, "completions", "foreign")
    duckdb.execute(
        f"copy (select * exclude (preemptions) from read_parquet('{completions_part(run_dir)}')) "
        f"to '{part}' (format parquet)"
    )
    with pytest.raises(DamagedPartsError, match=r"foreign.*missing: \['preemptions'\]"):
        rebuild_run(run_dir, settings.database_path, 10)


def part_of_run(run_dir: Path, table: str, name: str) -> Path:
    return run_dir / "parts" / table / f"{name}.parquet"


def test_rebuild_rejects_a_run_of_another_table_version(run_dir, settings):
    manifest = read_manifest(run_dir)
    write_manifest(run_dir, dataclasses.replace(manifest, table_version=TABLE_VERSION - 1, assayline_version="0.0.1"))
    with pytest.raises(StoreError, match=rf"tables of version {TABLE_VERSION - 1}; version {TABLE_VERSION} is need"):
        rebuild_run(run_dir, settings.database_path, 10)


def test_a_run_that_is_worked_on_is_left_alone(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    with pytest.raises(StoreError, match=r"is in use by process \d+"):
        rebuild_run(evaluation.run_dir, settings.database_path, 10)


def damage_file(path: Path) -> None:
    path.write_text("no database")


def make_old(path: Path) -> None:
    with duckdb.connect(path) as connection:
        connection.execute("update raw.schema_version set table_version = ?", [TABLE_VERSION - 1])


def damage_block(path: Path) -> None:
    """Zeroes the file behind its headers: it opens no more, or fails when it is read."""
    data = bytearray(path.read_bytes())
    data[3 * 4096 :] = bytes(len(data) - 3 * 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [damage_file, make_old, damage_block])
def test_rebuild_rejects_an_unusable_database_until_it_is_set_aside(run_dir, spec, settings, damage):
    original = content(settings.database_path)
    damage(settings.database_path)
    damaged = settings.database_path.read_bytes()
    with pytest.raises(DatabaseUnusableError, match=r"assayline db rebuild --all --set-aside"):
        begin_evaluation(spec, settings)
    assert run("db rebuild", ["--all"]) == 6
    assert run("db rebuild", ["--all", "--set-aside"]) == 0
    (aside,) = settings.data_dir.glob("*.aside-*")
    assert aside.read_bytes() == damaged
    assert content(settings.database_path) == original


def test_a_foreign_database_is_not_set_aside(run_dir, tmp_path, capsys):
    with duckdb.connect(tmp_path / "theirs.duckdb") as connection:
        connection.execute("create table theirs as select 1 as a")
    assert run("db rebuild", ["--all", "--set-aside", "--into", str(tmp_path / "theirs.duckdb")]) == 6
    assert "not one of assayline" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("*.duckdb*")) == ["theirs.duckdb", "theirs.duckdb.lock"]


def test_the_command_rebuilds_all_into_another_file(run_dir, spec, settings, tmp_path, capsys):
    begin_and_vanish(spec, settings, 3)
    assert run("db rebuild", ["--all", "--into", str(tmp_path / "new" / "other.duckdb")]) == 0
    out = capsys.readouterr().out
    for run_id in list_runs(settings):
        assert f"Run {run_id}, " in out
    assert f"Run {run_dir.name}, completed: 20 prompts, 20 requests, 20 completions" in out
    assert "15 requests have no answer. " in out
    with connect(tmp_path / "new" / "other.duckdb", 10, read_only=True) as connection:
        assert connection.execute("select count(*) from runs").fetchall() == [(2,)]


def test_the_command_sets_aside_a_database_and_parts(run_dir, settings, capsys):
    damage_file(settings.database_path)
    cut(completions_part(run_dir))
    assert run("db rebuild", [run_dir.name]) == 6
    assert "assayline db rebuild --all --set-aside" in capsys.readouterr().err
    assert run("db rebuild", [run_dir.name, "--set-aside"]) == 0
    out = capsys.readouterr().out
    assert "assayline.duckdb is unusable; renamed to assayline.duckdb.aside-" in out
    assert "Renamed a damaged part file to " in out and ".parquet.damaged" in out
    assert "18 requests have no answer" in out


def test_one_run_that_cannot_be_loaded_does_not_keep_the_others_from_it(run_dir, spec, settings, capsys):
    shutil.copytree(run_dir, run_dir.parent / "00-broken")
    (run_dir.parent / "00-broken" / "run.json").write_text("{")
    (run_dir.parent / "01-none").mkdir()
    for scorers in (["json"], ["json", "{kind: json, name: other}"]):
        complete(spec.model_copy(update={"scorers": [parse_scorer(one) for one in scorers]}), settings)
    original = content(settings.database_path)
    settings.database_path.unlink()
    assert run("db rebuild", ["--all"]) == 6
    assert content(settings.database_path) == original
    told = capsys.readouterr()
    assert f"Run {run_dir.name}, completed" in told.out
    assert told.err.count("error: ") == 2 and "01-none has no run.json" in told.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "Run 'nothing' is not in"),
        (["--all"], "No runs in"),
        *((wrong, "usage: assayline db rebuild") for wrong in ([], ["--all", "run"], ["--al"])),
    ],
)
def test_rebuild_command_rejects_missing_runs_and_arguments(settings, capsys, arguments, words):
    try:
        code = run("db rebuild", arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and words in capsys.readouterr().err


def test_repair_needs_no_prefect(run_dir):
    lines = (
        "import sys",
        "sys.modules['prefect'] = None",
        "from assayline.flows.cli import run",
        "sys.exit(run('db rebuild', ['--all']))",
    )
    process = start_python("; ".join(lines))
    assert f"Run {run_dir.name}, completed: 20 prompts" in process.communicate()[0]
    assert process.returncode == 0


def test_answers_given_twice_stay_a_failure(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    work(evaluation)
    (twice,) = query_one(completions_part(evaluation.run_dir))
    write_part(evaluation.run_dir, "completions", "extra", [completion_of(twice)])
    with pytest.raises(RunFailedError, match="no request left to send"):
        evaluation.finish(counts)
    assert read_manifest(evaluation.run_dir).is_final
    assert rebuild_run(evaluation.run_dir, settings.database_path, 10).manifest.state == "failed"


def test_rebuild_fails_a_completed_run_when_a_request_is_answered_twice(run_dir, settings):
    (twice,) = query_one(completions_part(run_dir))
    write_part(run_dir, "completions", "extra", [completion_of(twice)])
    rebuilt = rebuild_run(run_dir, settings.database_path, 10).manifest
    assert (rebuilt.state, rebuilt.is_final) == ("failed", True) and "duplicate_completions" in str(rebuilt.message)
    assert query(settings, "select state from runs") == [("failed",)]


def query_one(part: Path) -> tuple[str]:
    (row,) = duckdb.execute(f"select request_id from read_parquet('{part}') limit 1").fetchall()
    return (str(row[0]),)


def test_rebuild_restores_the_pin_that_came_with_a_copied_run(run_dir, spec, settings, tmp_path, capsys):
    assert run("baseline", ["pin", "good", run_dir.name]) == 0
    there = settings.model_copy(update={"data_dir": tmp_path / "there", "database": None})
    own = complete(spec, there, "never").run_id
    shutil.copytree(run_dir, there.run_dir(run_dir.name))
    with patch.dict(os.environ, ASSAYLINE_DATA_DIR=str(there.data_dir)):
        assert run("db rebuild", [run_dir.name]) == 0
        assert query(there, "select baseline, run_id from baselines") == [("good", run_dir.name)]
        assert run("baseline", ["pin", "good", own]) == 0
        assert run("db rebuild", ["--all"]) == 0 and query(there, "select run_id from baselines") == [(own,)]
        there.database_path.unlink()
        assert run("db rebuild", ["--all"]) == 0 and query(there, "select run_id from baselines") == [(own,)]


def test_rebuild_rejects_damaged_decisions(run_dir, settings, capsys):
    (run_dir / "decisions.jsonl").write_text('{"decision": "pin"')
    assert run("db rebuild", [run_dir.name]) == 6
    assert "decisions.jsonl, the verdicts and pins of the run, cannot be read" in capsys.readouterr().err


def test_pinned_baselines_survive_the_same_database_and_come_back_into_a_new_one(run_dir, settings, capsys):
    assert run("baseline", ["pin", "good", run_dir.name, "--note", "why"]) == 0
    with connect(settings.database_path, 10) as connection:
        pins = connection.execute("from baselines").fetchall()
    assert run("db rebuild", ["--all"]) == 0
    assert query(settings, "from baselines") == pins
    settings.database_path.unlink()
    assert run("db rebuild", [run_dir.name]) == 0
    assert query(settings, "from baselines") == pins
    assert f"Restored baseline good: run {run_dir.name}." in capsys.readouterr().out
