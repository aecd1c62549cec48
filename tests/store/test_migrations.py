"""Data of earlier versions stays readable: databases, metrics, parts, and an unfinished run."""

import dataclasses
import json
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from run_kit import complete, list_runs, query, read_line, start_python

from assayline.errors import DamagedPartsError, StoreError
from assayline.evaluation import begin, rebuild
from assayline.evaluation import run as evaluation_run
from assayline.evaluation.rebuild import rebuild_run
from assayline.records import Completion
from assayline.runs.manifest import LAYOUT, read_manifest, read_spec_json, write_manifest
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.spec.identity import use_current_names
from assayline.stats.pairs import find_p
from assayline.store import database, parts
from assayline.store.database import OLDEST_VERSION, SQL_FOLDER, TABLE_VERSION, connect, list_added_columns, transaction
from assayline.store.parts import TABLES, list_parts
from assayline.store.runs import delete_run

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FIXTURE = FIXTURES / "version_4"
WAS = 4
NEXT = TABLE_VERSION + 1
REDEFINED = {("compare_runs", column) for column in ("low", "high", "p_value")}
"""Columns whose definition is another today; the tests of compare_runs have it."""
UNCERTAIN = {("latency_percentile", column) for column in ("low_s", "high_s")}
"""Columns that are NULL today if too few requests are independent."""
DROPPED = {
    ("accuracy", "interval_kind"),
    *(
        ("compare_runs", column)
        for column in ("baseline_errors", "candidate_errors", "detectable_drop", "mcnemar_p", "verdict")
    ),
}
"""Columns that nothing read."""
RENAMED = {"broken_limits": "failed_limits"}
CURRENT_VERDICTS = {"held": "pass", "broken": "fail"}
ADD_MOOD = """
alter table raw.completions add column mood varchar;
update raw.completions set mood = 'calm' where error_kind is null;
create table raw.moods (run_id varchar not null, mood varchar);
"""
CONNECT = """
import sys
from pathlib import Path
from assayline.store import database
database.SQL_FOLDER, database.TABLE_VERSION = Path(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
with database.connect(Path(sys.argv[1]), 10):
    pass
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of version 4, which is the working folder too: its specs name the model by a relative path."""
    folder = tmp_path / "data"
    with tarfile.open(FIXTURE / "data.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def next_sql(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on tables are of the next version, in which a completion has a mood; where its SQL is."""
    folder = tmp_path / "sql"
    shutil.copytree(SQL_FOLDER, folder)
    (folder / "migrations" / f"{NEXT:02}_add_mood.sql").write_text(ADD_MOOD)
    schema = folder / "schema" / "04_completions.sql"
    table = schema.read_text()
    assert "acceptance_histogram integer[]\n" in table, "the last column of a completion is another by now"
    schema.write_text(table.replace("histogram integer[]\n", "histogram integer[],\n    mood varchar\n"))
    monkeypatch.setattr(database, "SQL_FOLDER", folder)
    for module in (database, begin, rebuild, evaluation_run):
        monkeypatch.setattr(module, "TABLE_VERSION", NEXT)
    monkeypatch.setitem(TABLES, "completions", TABLES["completions"].append(pa.field("mood", pa.string())))
    monkeypatch.setitem(parts._READERS[Completion], "mood", lambda record: "bright")
    return folder


def find_run(data: Path, name: str) -> Path:
    (found,) = (data / "runs").glob(f"*-{name}-*")
    return found


def read_content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with connect(path, 10) as connection:
        return {
            table: connection.execute(f"select * from {table} order by all").fetchall()
            for table in [*TABLES, "runs", "scorers", "loads", "slos", "loaded_parts"]
        }


def describe_tables(path: Path) -> list[tuple[Any, ...]]:
    with connect(path, 10) as connection:
        return connection.execute(
            "select schema_name, table_name, column_name, data_type, is_nullable, comment from duckdb_columns() "
            "where not internal order by schema_name, table_name, column_index"
        ).fetchall()


def check_metrics(path: Path, but: str | None = None, fixture: Path = FIXTURE) -> None:
    """Views return the same rows as under the fixture's version, for all runs but one, except `REDEFINED` columns."""
    metrics: dict[str, Any] = json.loads((fixture / "metrics.json").read_text())
    with connect(path, 10, read_only=True) as connection:
        for name, metric in metrics.items():
            result = connection.execute(metric["query"])
            names = [column[0] for column in result.description or ()]
            rows = [dict(zip(names, values, strict=True)) for values in result.fetchall()]
            if name == "compare_runs":
                rows = [row | {"p_value": find_p(row)} for row in rows]
            wanted = [row for row in metric["rows"] if but is None or row.get("run_id") != but]
            assert len(rows) == len(wanted), name
            for row, expected in zip(rows, wanted, strict=True):
                for column, value in expected.items():
                    if (name, column) in DROPPED:
                        assert column not in row
                        continue
                    found = row[RENAMED.get(column, column)]
                    if column == "verdict":
                        assert found == CURRENT_VERDICTS.get(value, value), name
                    elif (name, column) in REDEFINED:
                        assert found is not None, (name, column)
                    elif (name, column) in UNCERTAIN:
                        assert found is None or value is not None, (name, column)
                    elif isinstance(value, float):
                        assert found == pytest.approx(value, rel=1e-9), (name, column)
                    else:
                        assert (str(found) if isinstance(value, str) else found) == value, (name, column)


def check_as_before(path: Path) -> None:
    with duckdb.connect(path) as connection:
        assert connection.execute("select table_version from schema_version").fetchall() == [(WAS,)]
        columns = connection.execute("select table_name, column_name from duckdb_columns()").fetchall()
        assert not {"mood", "moods"} & {name for names in columns for name in names}
        assert ("requests", "size") not in columns
        assert connection.execute("select count(*) from run_summary").fetchall() == [(3,)]


def test_runs_of_version_4_keep_their_metrics_and_are_rebuilt_row_by_row(data: Path, tmp_path: Path) -> None:
    assert describe_tables(data / "assayline.duckdb") == describe_tables(tmp_path / "new.duckdb")
    check_metrics(data / "assayline.duckdb")
    unfinished = find_run(data, "three").name  # the database has not seen all of its parts
    for name in ("one", "two"):
        rebuild_run(find_run(data, name), data / "new.duckdb", 10)
    with connect(data / "assayline.duckdb", 10) as connection, transaction(connection):
        delete_run(connection, unfinished, list(TABLES))
    scored_anew = {"scorers": []}
    assert read_content(data / "new.duckdb") | scored_anew == read_content(data / "assayline.duckdb") | scored_anew
    check_metrics(data / "new.duckdb", but=unfinished)


def test_a_migration_tells_errors_from_wrong_answers_and_names_the_version_that_scored(data: Path) -> None:
    path = data / "assayline.duckdb"
    with duckdb.connect(path) as connection:
        of_run = "from scorers limit 1"
        connection.execute(f"insert into scores select run_id, scorer, 'p', 0, 0, 0, null, 'error: timeout' {of_run}")
        wrong = connection.execute("select count(*) from scores where value = 0").fetchall()[0][0]
    with connect(path, 10) as connection:
        kinds = connection.execute("select error_kind, count(*) from scores where value = 0 group by all order by all")
        assert kinds.fetchall() == [("timeout", 1), (None, wrong - 1)]
        assert connection.execute("select distinct definition from scorers").fetchall() == [("assayline 0.1.0",)]


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=[] if version in (5, TABLE_VERSION - 1) else pytest.mark.rare)
        for version in range(5, TABLE_VERSION)
    ],
)
def test_a_database_of_each_later_version_opens_with_the_metrics_that_it_had(tmp_path: Path, version: int) -> None:
    fixture = FIXTURES / f"version_{version}"
    with tarfile.open(fixture / "data.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with connect(tmp_path / "assayline.duckdb", 10):
        pass
    check_metrics(tmp_path / "assayline.duckdb", fixture=fixture)


def test_every_version_has_its_migration() -> None:
    numbers = sorted(int(file.name[:2]) for file in (SQL_FOLDER / "migrations").glob("*.sql"))
    assert numbers == list(range(OLDEST_VERSION + 1, TABLE_VERSION + 1))


def test_every_column_that_a_migration_adds_is_found() -> None:
    folder = SQL_FOLDER / "migrations"
    added = sum(file.read_text().lower().count("add column") for file in folder.glob("*.sql"))
    assert added == sum(
        len(list_added_columns(folder, table)) for table in [*TABLES, "runs", "scorers", "scores", "verdicts"]
    )


def test_an_older_database_is_migrated_when_it_is_opened_for_writing(data: Path, next_sql: Path) -> None:
    path = data / "assayline.duckdb"
    with connect(path, 10) as connection:
        assert connection.execute("select mood, count(*) from completions group by mood").fetchall() == [("calm", 12)]
        assert connection.execute("select table_version from schema_version").fetchall() == [(NEXT,)]
        assert connection.execute("from moods").fetchall() == []
    check_metrics(path)
    with duckdb.connect(path) as connection:
        connection.execute("update raw.completions set mood = 'seen'")
    with connect(path, 10) as connection:  # once and never again
        assert connection.execute("select distinct mood from completions").fetchall() == [("seen",)]


def test_a_reader_of_an_older_database_is_told_to_open_it_for_writing(data: Path, next_sql: Path) -> None:
    before = (data / "assayline.duckdb").read_bytes()
    said = rf"has tables of version {WAS}, .* reads version {NEXT}\. hint: run `assayline report --leaderboard`"
    with pytest.raises(StoreError, match=said), connect(data / "assayline.duckdb", 10, read_only=True):
        pass
    assert (data / "assayline.duckdb").read_bytes() == before


def test_a_migration_that_fails_half_way_leaves_the_database_as_it_was(
    data: Path, next_sql: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data / "assayline.duckdb"
    (migration,) = (next_sql / "migrations").glob(f"{NEXT:02}_*.sql")
    migration.write_text(ADD_MOOD + "alter table raw.requests add column size integer;\nselect error('half-way');\n")
    with pytest.raises(duckdb.Error, match="half-way"), connect(path, 10):
        pass
    monkeypatch.undo()
    monkeypatch.chdir(data)
    check_as_before(path)


def test_a_migration_that_is_killed_half_way_leaves_the_database_as_it_was(
    data: Path, next_sql: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sign = data / "assayline.duckdb", data / "half-way.csv"
    (migration,) = (next_sql / "migrations").glob(f"{NEXT:02}_*.sql")
    endless = (
        "select count(*) from range(10_000_000) as one join range(10_000_000) as other on one.range < other.range;"
    )
    migration.write_text(f"{ADD_MOOD}copy (select 1) to '{sign}';\n{endless}\n")
    process = start_python(CONNECT, path, next_sql, NEXT)
    assert read_line(process) == "ready"
    while not sign.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    monkeypatch.undo()
    monkeypatch.chdir(data)
    check_as_before(path)


def test_a_run_of_version_4_is_resumed_by_a_later_one_and_its_parts_are_of_both(data: Path, next_sql: Path) -> None:
    run_dir = find_run(data, "three")
    write_manifest(run_dir, dataclasses.replace(read_manifest(run_dir), layout=LAYOUT))
    settings = Settings(data_dir=data, lock_dir=data / "locks", flush_interval_s=0.2, load_interval_s=0.5)
    runs = list_runs(settings)
    spec = parse_spec(json.loads(use_current_names(read_spec_json(run_dir))))
    assert complete(spec, settings).run_id == run_dir.name
    assert list_runs(settings) == runs
    assert query(settings, f"select is_sound from request_integrity where run_id = '{run_dir.name}'") == [(True,)]
    assert read_manifest(run_dir).table_version == NEXT
    rebuild_run(run_dir, data / "new.duckdb", 10)
    with connect(data / "new.duckdb", 10) as connection:
        moods = connection.execute("select mood, count(*) from completions group by mood order by mood").fetchall()
        assert moods == [("bright", 4), (None, 2)]


def test_damaged_part_of_version_4_is_rewritten_from_a_migrated_database(data: Path, next_sql: Path) -> None:
    run_dir = find_run(data, "one")
    with connect(data / "assayline.duckdb", 10) as connection:
        before = connection.execute("from completions order by all").fetchall()
    (part,) = list_parts(run_dir, "completions")
    part.write_bytes(part.read_bytes()[:-20])
    assert rebuild_run(run_dir, data / "assayline.duckdb", 10, set_aside=True).rescued == [part]
    with connect(data / "assayline.duckdb", 10) as connection:
        assert connection.execute("from completions order by all").fetchall() == before


def test_a_column_that_no_migration_added_may_not_be_missing(data: Path, next_sql: Path) -> None:
    run_dir = find_run(data, "one")
    (part,) = list_parts(run_dir, "completions")
    duckdb.execute(f"copy (select * exclude (text) from '{part}') to '{part}.less' (format parquet)")
    Path(f"{part}.less").replace(part)
    with pytest.raises(DamagedPartsError, match=r"missing: \['text'\]"):
        rebuild_run(run_dir, data / "assayline.duckdb", 10)


def test_a_run_of_a_later_version_is_not_rebuilt(data: Path) -> None:
    run_dir = find_run(data, "three")
    manifest = read_manifest(run_dir)
    write_manifest(run_dir, dataclasses.replace(manifest, table_version=NEXT))
    with pytest.raises(StoreError, match=f"tables of version {NEXT}"):
        rebuild_run(run_dir, data / "new.duckdb", 10)
