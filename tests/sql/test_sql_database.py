"""The DuckDB file: its lock, held by a real second process, and the version of what is in it."""

import hashlib
import shutil
import subprocess
import sys

import duckdb
import pytest
from run_kit import PATIENCE_S

from assayline.errors import DatabaseLockedError, StoreError
from assayline.store import database
from assayline.store.database import SQL_FOLDER, TABLE_VERSION, connect

pytestmark = pytest.mark.slow

HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reader")
print("held", flush=True)
for line in iter(sys.stdin.readline, "\\n"):
    print(connection.execute("select count(*) from raw.baselines").fetchall()[0][0], flush=True)
connection.close()
"""
READ_ON = """
import sys, time, duckdb
while True:
    try:
        with duckdb.connect(sys.argv[1], read_only=True) as connection:
            print(connection.execute("select count(*) from raw.baselines").fetchall()[0][0], flush=True)
            time.sleep(0.02)
    except duckdb.IOException as error:
        if not any(text in str(error) for text in ("Could not set lock", "checkpoint iteration does not match")):
            raise
"""
PIN = "insert into baselines values ('pin', 'run', now()::timestamp, null, null)"
WRITE = f"""
import sys
from pathlib import Path
from assayline.store import database
database._READERS_S = 0
for _ in range(int(sys.argv[2])):
    with database.connect(Path(sys.argv[1]), 60) as connection:
        connection.execute("{PIN}")
"""
DIE_AT_STEP = f"""
import os, signal, sys
from pathlib import Path
from assayline.store import database
steps = []
def kill_after(name, call):
    def done(*arguments):
        result = call(*arguments)
        steps.append(name)
        if len(steps) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return done
os.fsync, Path.replace = kill_after("fsync", os.fsync), kill_after("replace", Path.replace)
database._READERS_S = 0
with database.connect(Path(sys.argv[1]), 60) as connection:
    connection.execute("{PIN}")
print(*steps)
"""


class Holder:
    """Another process that has the file open until `release`."""

    def __init__(self, path, role):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "held\n"

    def count(self):
        self.process.stdin.write("count\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def release(self):
        if self.process.poll() is None:
            self.process.communicate("\n", timeout=PATIENCE_S)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data" / "assayline.duckdb"
    with connect(path, wait_s=0):
        pass
    return path


@pytest.fixture
def hold(path):
    holders = []

    def start(role):
        holders.append(Holder(path, role))
        return holders[-1]

    yield start
    for holder in holders:
        holder.release()


@pytest.fixture
def sql_folder(tmp_path, monkeypatch):
    """A copy of sql/ that a test may change."""
    copy = tmp_path / "sql"
    shutil.copytree(SQL_FOLDER, copy)
    monkeypatch.setattr(database, "SQL_FOLDER", copy)
    return copy


def test_a_new_file_gets_its_folder_its_tables_and_its_views(path):
    with connect(path, wait_s=0, read_only=True) as connection:
        assert connection.execute("select count(*) from runs").fetchall() == [(0,)]
        assert connection.execute("select count(*) from main.metric_value").fetchall() == [(0,)]


def test_the_file_has_the_format_of_duckdb_1_5(path):
    with connect(path, wait_s=0) as connection:
        found = connection.execute("select tags['storage_version'] from duckdb_databases() where path is not null")
        assert [version.rstrip("+") for (version,) in found.fetchall()] == ["v1.5.0"]


def test_the_connection_is_closed_at_the_end_even_after_an_error(path):
    with pytest.raises(ValueError, match="mine"), connect(path, wait_s=0) as connection:
        raise ValueError("mine")
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("select 1")


@pytest.mark.parametrize("read_only", [False, True])
def test_connect_waits_for_a_writer_and_then_names_it(path, hold, read_only):
    holder = hold("writer")
    with pytest.raises(DatabaseLockedError) as raised, connect(path, wait_s=0.3, read_only=read_only):
        pass
    message = str(raised.value)
    assert str(path) in message
    assert f"process {holder.process.pid} " in message
    assert "0.3 s" in message and "ASSAYLINE_DATABASE_WAIT_S" in message and "part files" in message
    assert "\n" not in message


def test_a_file_that_is_freed_in_time_is_opened(path, hold, monkeypatch):
    holder, sleep = hold("writer"), database.time.sleep

    def release(seconds):  # it waits, so it has been refused
        monkeypatch.setattr(database.time, "sleep", sleep)
        holder.release()

    monkeypatch.setattr(database.time, "sleep", release)
    with connect(path, wait_s=30) as connection:
        assert connection.execute("select count(*) from runs").fetchall() == [(0,)]
    assert holder.process.poll() == 0


def test_readers_do_not_hold_up_readers(path, hold):
    hold("reader")
    with connect(path, wait_s=0, read_only=True) as connection:
        assert connection.execute("select count(*) from runs").fetchall() == [(0,)]


def count_pins(path):
    with connect(path, wait_s=0, read_only=True) as connection:
        return connection.execute("select count(*) from baselines").fetchall()[0][0]


def write_to_journal(path):
    with connect(path, wait_s=0, checkpoint=False) as connection:
        connection.execute(PIN)
    assert path.with_name(f"{path.name}.wal").exists()


def test_connect_writes_next_to_a_reader_that_keeps_its_state(path, hold):
    write_to_journal(path)
    reader, inode = hold("reader"), path.stat().st_ino
    with pytest.raises(DatabaseLockedError), connect(path, wait_s=0, checkpoint=False):
        pass
    with pytest.raises(KeyError), connect(path, wait_s=0) as connection:
        connection.execute(PIN)
        raise KeyError("the copy is dropped")
    assert (path.stat().st_ino, count_pins(path)) == (inode, 1)
    with connect(path, wait_s=0) as connection:
        connection.execute(PIN)
        assert connection.execute("select current_database()").fetchall() == [("assayline",)]
    assert (reader.count(), hold("reader").count(), count_pins(path)) == (1, 2, 2)
    assert sorted(one.name for one in path.parent.iterdir()) == ["assayline.duckdb", "assayline.duckdb.lock"]


def test_connect_copies_once_for_a_reader_that_stays(path, hold):
    reader, inodes = hold("reader"), {path.stat().st_ino}
    for _ in range(3):
        with connect(path, wait_s=0) as connection:
            connection.execute(PIN)
        inodes.add(path.stat().st_ino)
    assert (len(inodes), reader.count(), count_pins(path)) == (2, 0, 3)


def test_connect_admits_one_assayline_writer_at_a_time_next_to_readers(path):
    command = [sys.executable, "-c"]
    with subprocess.Popen([*command, READ_ON, str(path)], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "0\n"
        writers = [subprocess.Popen([*command, WRITE, str(path), "10"]) for _ in range(2)]
        assert [writer.wait(60) for writer in writers] == [0, 0]
        assert reader.poll() is None
        reader.kill()
        seen = [int(line) for line in reader.stdout.read().splitlines()]
    assert seen == sorted(seen) and count_pins(path) == 20


def test_connect_opens_again_what_was_renamed_between_the_file_and_its_journal(path, tmp_path, monkeypatch):
    old, connect_file = tmp_path / "old.duckdb", database._connect_file
    shutil.copy(path, old)
    with connect(path, 1, checkpoint=False) as connection:
        connection.execute("checkpoint")
        connection.execute(PIN)
    new = path.replace(tmp_path / "new.duckdb")
    old.replace(path)  # next to the journal of the new file

    def connect_and_rename(*args):
        try:
            return connect_file(*args)
        finally:
            if new.exists():
                new.replace(path)

    monkeypatch.setattr(database, "_connect_file", connect_and_rename)
    with connect(path, 10, read_only=True) as connection:
        assert connection.execute("select count(*) from raw.baselines").fetchall() == [(1,)]


def test_connect_names_the_assayline_process_that_writes(path):
    second = connect(path, wait_s=0)
    with connect(path, wait_s=0), pytest.raises(DatabaseLockedError, match=r"in use by process \d+ on .*, another"):
        second.__enter__()


def test_connect_loses_nothing_when_a_writer_is_killed_while_it_puts_its_copy_in_place(path, hold):
    rows = []
    for step in range(1, 20):
        write_to_journal(path)
        holder = hold("reader")
        command = [sys.executable, "-c", DIE_AT_STEP, str(path), str(step)]
        process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if process.returncode == 0:
            break
        assert count_pins(path) in (0, 1, 2), "a reader can open the file"
        holder.release()
        with connect(path, wait_s=0) as connection:
            rows += connection.execute("select count(*) from baselines").fetchall()
            connection.execute("delete from baselines")
        assert not path.with_name(".assayline.duckdb.copy").exists()
    assert process.stdout == "fsync replace replace fsync\n"
    assert rows == [(1,), (2,), (2,), (2,)], "the killed writer's row is there as soon as the journal is moved"


def test_a_reader_cannot_write(path):
    with connect(path, wait_s=0, read_only=True) as connection, pytest.raises(duckdb.Error, match="read-only"):
        connection.execute("delete from runs")


def expect_refusal(path, match, read_only=False):
    with pytest.raises(StoreError, match=match) as raised, connect(path, wait_s=0, read_only=read_only):
        pass
    assert not isinstance(raised.value, DatabaseLockedError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_of_another_kind_is_refused(tmp_path, read_only):
    other = tmp_path / "notes.txt"
    other.write_text("not a database " * 1000)
    expect_refusal(other, "notes.txt cannot be opened as a DuckDB database: .*not a valid DuckDB", read_only)
    assert other.read_text() == "not a database " * 1000


@pytest.mark.parametrize("read_only", [False, True])
def test_a_folder_is_refused(tmp_path, read_only):
    expect_refusal(tmp_path, "cannot be opened", read_only)


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    expect_refusal(tmp_path / "file" / "assayline.duckdb", "cannot be made or taken")


def test_a_reader_makes_no_file(tmp_path):
    expect_refusal(tmp_path / "none.duckdb", "no database at .*none.duckdb", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path, read_only):
    other = tmp_path / "other.duckdb"
    with duckdb.connect(other) as connection:
        connection.execute("create table orders (id integer)")
    expect_refusal(other, "other.duckdb is a DuckDB database, but not one of assayline: it has orders", read_only)
    with duckdb.connect(other) as connection:
        assert connection.execute("select table_name from duckdb_tables()").fetchall() == [("orders",)]


def test_a_reader_of_an_empty_database_is_told_so(tmp_path):
    duckdb.connect(tmp_path / "empty.duckdb").close()
    expect_refusal(tmp_path / "empty.duckdb", "empty.duckdb has no tables yet", read_only=True)


@pytest.mark.parametrize(("version", "read_only"), [(TABLE_VERSION + 1, False), (TABLE_VERSION - 1, True)])
def test_tables_of_another_version_are_refused_and_left_alone(path, read_only, version):
    with duckdb.connect(path) as connection:
        connection.execute("update raw.schema_version set table_version = ?", [version])
    expect_refusal(
        path,
        f"assayline.duckdb has tables of version {version}, .* needs version {TABLE_VERSION}",
        read_only,
    )


def test_tables_without_a_column_that_came_later_are_refused(path):
    with duckdb.connect(path) as connection:
        for (name,) in connection.execute("select view_name from duckdb_views() where not internal").fetchall():
            connection.execute(f"drop view if exists main.{name}; drop view if exists internal.{name}")
        connection.execute("alter table raw.runs drop job; update raw.schema_version set schema_digest = 'earlier'")
    expect_refusal(path, "has tables of an earlier assayline .*: .*job.*hint: run `assayline db rebuild --all")


def test_a_database_without_its_version_is_refused(path):
    with duckdb.connect(path) as connection:
        connection.execute("delete from raw.schema_version")
    expect_refusal(path, "tables of version none")


def test_up_to_date_views_are_not_created_again(path):
    with duckdb.connect(path) as connection:
        connection.execute("create or replace view internal.request_integrity as select 'kept' as proof")
    with connect(path, wait_s=0) as connection:
        assert connection.execute("from request_integrity").fetchall() == [("kept",)]


def test_changed_models_are_made_again_and_gone_ones_dropped(path, sql_folder):
    with connect(path, wait_s=0) as connection:
        connection.execute("insert into telemetry values ('run', 'w', 0, 1, 2, 3, 4, 0.5, 3, 0, 0, null)")
        connection.execute("create view main.mine as select 1 as one")
    models = sql_folder / "models" / "20_metrics"
    (models / "80_request_integrity.sql").unlink()
    (models / "95_steps.sql").write_text(
        "create or replace view main.steps as select max(engine_steps) as n from raw.telemetry;"
    )
    with connect(path, wait_s=0) as connection:
        assert connection.execute("from steps").fetchall() == [(2,)]
        views = {name for (name,) in connection.execute("select view_name from duckdb_views()").fetchall()}
        assert "request_integrity" not in views and {"mine", "accuracy"} <= views
        comment = "select comment from duckdb_views() where view_name = 'accuracy'"
        assert connection.execute(comment).fetchall()[0][0].startswith("One row per run")
        assert connection.execute("select count(*) from schema_version").fetchall() == [(1,)]


def test_a_new_table_is_added_to_those_there(path, sql_folder):
    (sql_folder / "schema" / "99_more.sql").write_text("create table if not exists more (id integer);")
    with connect(path, wait_s=0) as connection:
        assert connection.execute("from more").fetchall() == []


def test_a_reader_does_not_take_views_of_another_version(path, sql_folder):
    model = sql_folder / "models" / "20_metrics" / "80_request_integrity.sql"
    model.write_text(model.read_text() + "-- another definition\n")
    expect_refusal(path, "assayline.duckdb are of another version .*hint: run `assayline report", read_only=True)
    with connect(path, wait_s=0):
        pass
    with connect(path, wait_s=0, read_only=True) as connection:
        assert connection.execute("from request_integrity").fetchall() == []


def test_models_are_made_all_or_none(path, sql_folder):
    with duckdb.connect(path) as connection:
        before = connection.execute("select * from raw.schema_version").fetchall()
    (sql_folder / "models" / "20_metrics" / "80_request_integrity.sql").unlink()
    broken = "create or replace view main.broken as select nothing from raw.runs;"
    (sql_folder / "models" / "99_broken.sql").write_text(broken)
    with pytest.raises(duckdb.BinderException), connect(path, wait_s=0):
        pass
    with duckdb.connect(path) as connection:
        assert connection.execute("select * from raw.schema_version").fetchall() == before
        assert connection.execute("select count(*) from main.metric_value").fetchall() == [(0,)]
        assert connection.execute("select count(*) from internal.request_integrity").fetchall() == [(0,)]


def test_changed_columns_need_another_table_version(schema):
    """Fails when a raw table's columns change: raise TABLE_VERSION, then put the new pair here."""
    columns = schema.execute(
        """
        select table_name, column_name, data_type, is_nullable
        from duckdb_columns()
        where schema_name = 'raw'
        order by table_name, column_index
        """
    ).fetchall()
    digest = hashlib.sha256(repr(columns).encode()).hexdigest()[:16]
    assert (TABLE_VERSION, digest) == (1, "e5f5bf644249b762")
