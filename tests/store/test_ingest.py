"""From parts to the database: every part exactly once, however often it is tried or killed."""

import random
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from run_kit import completion_of, read_line, request_of, rows_of, start_python

from assayline.errors import StoreError
from assayline.records import EngineEvent, Prompt, Request, TelemetrySample
from assayline.store.database import connect
from assayline.store.ingest import load_parts
from assayline.store.parts import (
    MERGED_NAME,
    TABLES,
    list_part_names,
    merge_parts,
    remove_unfinished,
    split_parts,
    table_of,
    write_part,
)

pytestmark = pytest.mark.slow

LOAD = """
import itertools, os, signal, sys
from pathlib import Path
from assayline.store import ingest
from assayline.store.database import connect

class Dying:
    def __init__(self, connection, statements):
        self.connection, self.left = connection, statements

    def __getattr__(self, name):
        def call(*arguments):
            result = getattr(self.connection, name)(*arguments)
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call

ingest.FILES_PER_LOAD = 3
for statements in itertools.count(1):
    if not (child := os.fork()):
        with connect(Path(sys.argv[1]), 30) as connection:
            ingest.load_parts(Dying(connection, statements), "run", Path(sys.argv[2]))
        os._exit(0)
    if not os.waitpid(child, 0)[1]:
        break
    print("killed", flush=True)
    sys.stdin.readline()
"""
MERGE = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from assayline.store.parts import merge_parts, split_parts

def kill_before(event, folder):
    def look(name, args):
        global left
        place = {"open": 0, "os.rename": 1, "os.remove": 0}.get(name)
        if place is None or (name == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if str(args[place]).startswith(str(folder)):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
    globals()["left"] = event
    sys.addaudithook(look)

whole, merged = Path(sys.argv[1]), Path(sys.argv[2])
for change, source in ((merge_parts, whole), (split_parts, merged)):
    for event in itertools.count(1):
        folder = whole.with_name(f"{change.__name__}-{event}")
        shutil.copytree(source, folder)
        if not (child := os.fork()):
            kill_before(event, folder)
            change(folder)
            os._exit(0)
        if not os.waitpid(child, 0)[1]:
            break
"""
SECRET = "a\ud800 naïve 🙂 \n'\""
STORED = SECRET.replace("\ud800", "?")
RECORDS: list[tuple[Any, dict[str, Any]]] = [
    (
        Prompt(
            prompt_id="p",
            occurrence=1,
            source_row=2,
            source_id=None,
            messages=[{"role": "user", "content": SECRET}],
            target=None,
            metadata={"k": [1, None]},
        ),
        {"prompt_id": "p", "occurrence": 1, "source_row": 2, "source_id": None, "target": None},
    ),
    (
        Request(
            request_id="r",
            prompt_id="p",
            occurrence=1,
            repeat_index=0,
            prompt_token_ids=[5, 6],
            sampling={"stop": [SECRET], "seed": None},
            rendered=SECRET,
        ),
        {"request_id": "r", "prompt_token_ids": [5, 6], "rendered": STORED},
    ),
    (
        Request(request_id="failed", prompt_id="p", occurrence=0, repeat_index=0, prompt_token_ids=[], sampling={}),
        {"request_id": "failed", "prompt_token_ids": None, "rendered": None},
    ),
    (
        completion_of("r", text=SECRET, output_token_ids=[1, 2], token_at_s=[0.5, 0.25], logprobs=[{}]),
        {
            "text": STORED,
            "output_token_ids": [1, 2],
            "token_at_s": [0.5, 0.25],
            "logprobs_json": "[{}]",
            "cached_tokens": None,
            "first_token_at_s": None,
            "error_kind": None,
        },
    ),
    (
        EngineEvent("w", 1, 1, "failed", 1.5, None, SECRET, {"a": None}),
        {"event": "failed", "duration_s": None, "message": STORED, "details_json": '{"a": null}'},
    ),
    (
        TelemetrySample(
            worker="w", engine_generation=0, at_s=1.0, engine_steps=2**40, in_flight_requests=3, output_tokens=4
        ),
        {"engine_steps": 2**40, "in_flight_requests": 3},
    ),
]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "test.duckdb"


def load(database: Path, run_dir: Path, run_id: str = "run") -> int:
    with connect(database, 10) as connection:
        return load_parts(connection, run_id, run_dir)


def count(database: Path, table: str) -> int:
    with connect(database, 10) as connection:
        return int(connection.execute(f"select count(*) from {table}").fetchall()[0][0])


def corrupt(part: Path, start: int, length: int = 64) -> None:
    content = bytearray(part.read_bytes())
    content[start : start + length] = b"\xff" * length
    part.write_bytes(content)


@pytest.mark.parametrize(("record", "expected"), RECORDS, ids=lambda value: type(value).__name__)
def test_every_record_arrives_as_it_was(tmp_path: Path, database: Path, record: Any, expected: dict[str, Any]) -> None:
    write_part(tmp_path, table_of(record), "x", [record])
    assert load(database, tmp_path) == 1
    with connect(database, 10) as connection:
        result = connection.execute(f"select {', '.join(['run_id', *expected])} from {table_of(record)}")
        names = [column[0] for column in result.description or ()]
        assert [dict(zip(names, row, strict=True)) for row in result.fetchall()] == [{"run_id": "run", **expected}]


def test_json_columns_can_be_read_as_json(tmp_path: Path, database: Path) -> None:
    for record, _ in RECORDS:
        write_part(tmp_path, table_of(record), f"x{id(record)}", [record])
    load(database, tmp_path)
    with connect(database, 10) as connection:
        for table, schema in TABLES.items():
            for name in [name for name in schema.names if name.endswith("_json")]:
                query = f"select bool_and(json_valid({name})) from {table} where {name} is not null"
                assert connection.execute(query).fetchall()[0][0] in (True, None)
        content = connection.execute("select messages_json ->> '$[0].content' from prompts").fetchall()
        assert content == [(STORED,)]


def test_loading_twice_is_loading_once(tmp_path: Path, database: Path) -> None:
    """Peers, row 13."""
    write_part(tmp_path, "completions", "a", [completion_of("1"), completion_of("2")])
    assert [load(database, tmp_path), load(database, tmp_path)] == [2, 0]
    write_part(tmp_path, "completions", "b", [completion_of("3")])
    assert load(database, tmp_path) == 1
    assert count(database, "completions") == 3


def test_runs_have_ledgers_of_their_own(tmp_path: Path, database: Path) -> None:
    write_part(tmp_path, "completions", "a", [completion_of("1")])
    assert [load(database, tmp_path, "one"), load(database, tmp_path, "two")] == [1, 1]
    assert count(database, "(select distinct run_id from completions)") == 2


def test_parts_of_one_name_in_two_tables_are_two_parts(tmp_path: Path, database: Path) -> None:
    write_part(tmp_path, "completions", "same", [completion_of("1")])
    write_part(tmp_path, "requests", "same", [request_of(1)])
    assert load(database, tmp_path) == 2


def test_a_torn_part_is_never_read(tmp_path: Path, database: Path) -> None:
    part = write_part(tmp_path, "completions", "a", [completion_of("1")])
    (part.parent / ".b.parquet.writing").write_bytes(part.read_bytes()[:50])
    assert load(database, tmp_path) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part.write_bytes(b""),
        lambda part: part.write_bytes(b"no parquet"),
        lambda part: part.write_bytes(part.read_bytes()[:-20]),
        lambda part: corrupt(part, 40),
        lambda part: corrupt(part, part.stat().st_size - 8 - int.from_bytes(part.read_bytes()[-8:-4], "little")),
    ],
    ids=["empty", "other", "cut", "data", "footer"],
)
def test_a_damaged_part_is_named_and_nothing_of_its_load_is_stored(tmp_path: Path, database: Path, damage: Any) -> None:
    noise = random.Random(0)
    for name in ("a", "b", "c"):
        rows = [completion_of(f"{name}{i}", text=f"{noise.getrandbits(400):x}") for i in range(50)]
        damaged = write_part(tmp_path, "completions", name, rows)
        if name == "b":
            damage(damaged)
    write_part(
        tmp_path, "prompts", "fine", [Prompt(prompt_id="p", occurrence=0, source_row=0, source_id=None, messages=[])]
    )
    with pytest.raises(StoreError, match=r"Part \S*/b\.parquet could not .*`assayline db rebuild run --set-aside`"):
        load(database, tmp_path)
    assert count(database, "completions") == count(database, "loaded_parts where target_table = 'completions'") == 0
    assert count(database, "prompts") == 1
    (damaged.parent / "b.parquet").unlink()
    assert load(database, tmp_path) == 100


def test_a_part_of_another_shape_is_named(tmp_path: Path, database: Path) -> None:
    write_part(tmp_path, "completions", "a", [completion_of("1")])
    target = tmp_path / "parts" / "completions" / "foreign.parquet"
    duckdb.execute(f"copy (select 'x' as request_id, 1 as surprise) to '{target}' (format parquet)")
    with pytest.raises(StoreError, match=r"foreign\.parquet"):
        load(database, tmp_path)
    assert count(database, "completions") == 0


def test_a_loader_killed_after_any_statement_loads_exactly_once(tmp_path: Path, database: Path) -> None:
    """Peers, rows 12 and 13: rows and their ledger entry are stored together or not at all."""
    for number in range(15):
        write_part(tmp_path, "completions", f"part-{number:03d}", [completion_of(f"{number}-{i}") for i in range(20)])
    process, ledgers = start_python(LOAD, database, tmp_path), []
    while read_line(process) == "killed":
        ledgers.append(count(database, "loaded_parts"))
        assert count(database, "completions") == 20 * ledgers[-1]
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.wait() == 0
    assert ledgers.count(0) > 5 and {0, 3, 6} <= set(ledgers) <= {0, 3, 6, 9, 12, 15}
    assert count(database, "loaded_parts") == 15
    assert count(database, "(select distinct request_id from completions)") == count(database, "completions") == 300


def test_parts_merged_or_split_until_a_kill_before_any_file_event_have_each_row_once(
    tmp_path: Path, database: Path
) -> None:
    """Read as they are, loaded where some of them were before, and split and merged again."""
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    for number in range(6):
        rows = [completion_of(f"{number}-{i}") for i in range(number + 1)]
        write_part(whole, "completions", f"flow-{number:03d}-{len(rows)}rows", rows)
        write_part(whole, "requests", f"shard-{number:06d}", [request_of(number)])
        if number == 3:
            load(database, whole)
    before = {table: rows_of(whole, table) for table in TABLES}
    names = {table: list_part_names(whole, table) for table in TABLES}
    shutil.copytree(whole, merged)
    merge_parts(merged)
    assert [path.name for path in merged.rglob("*.parquet")] == [MERGED_NAME] * 2
    process = start_python(MERGE, whole, merged)
    assert process.wait() == 0
    killed = [*tmp_path.glob("merge_parts-*"), *tmp_path.glob("split_parts-*")]
    assert len(killed) > 40, "each event"
    for number, folder in enumerate([merged, *killed]):
        for table in TABLES:
            assert sorted(map(str, rows_of(folder, table))) == sorted(map(str, before[table])), folder
        if number % 4 == 0:
            half = shutil.copy(database, tmp_path / f"{number}.duckdb")
            assert [load(half, folder), load(half, folder)] == [11 + 2, 0], folder
            assert count(half, "(select distinct request_id from completions)") == count(half, "completions") == 21
            assert count(half, "requests") == 6
        split_parts(folder)
        remove_unfinished(folder)
        assert {table: list_part_names(folder, table) for table in TABLES} == names
        assert {table: rows_of(folder, table) for table in TABLES} == before
        merge_parts(folder)
        assert [path.name for path in folder.rglob("*.*")] == [MERGED_NAME] * 2
    shutil.copytree(whole, merged, dirs_exist_ok=True)  # as a tool that copies the folder and deletes nothing
    assert load(tmp_path / "other.duckdb", merged) == 27
