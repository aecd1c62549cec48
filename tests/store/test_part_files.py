"""Part files: every record survives the way there and back, whole or not at all."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_kit import completion_of, request_of, rows_of, start_python

from assayline.errors import StoreError
from assayline.records import EngineEvent, Prompt, Request, TelemetrySample
from assayline.store.parts import (
    TABLES,
    PartWriter,
    count_rows,
    count_table,
    list_parts,
    request_from_row,
    table_of,
    to_arrow,
    write_part,
)

WRITE = """
import os, signal, sys
from pathlib import Path
from assayline.records import Completion
from assayline.store.parts import to_arrow, write_part

def die_after(call):
    def done(*arguments):
        global left
        result = call(*arguments)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return done

to_arrow("completions", [])  # what a first call imports is imported once
os.fsync, Path.replace = die_after(os.fsync), die_after(Path.replace)
for step in range(1, 7):
    left = step
    if not (child := os.fork()):
        for number in range(2):
            rows = [
                Completion(request_id=f"{number}-{i}", worker="w", engine_generation=0, window_requests=1)
                for i in range(200)
            ]
            write_part(Path(sys.argv[1]) / str(step), "completions", f"part-{number}", rows)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1), st.text(), st.floats(allow_nan=False))
def test_a_request_comes_back_as_it_was(ids: list[int], text: str, number: float) -> None:
    sampling = {"stop": [text], "logit_bias": {"3": 1.5}, "seed": None, "temperature": number if abs(number) < 9 else 1}
    request = Request(
        request_id="r",
        prompt_id="p",
        occurrence=2,
        repeat_index=3,
        prompt_token_ids=ids,
        sampling=sampling,
        rendered=text,
    )
    [row] = to_arrow("requests", [request]).to_pylist()
    assert request_from_row(row) == request


def test_columns_are_those_of_the_schema_with_its_types_and_in_its_order() -> None:
    sql = Path(__file__).resolve().parents[2] / "sql" / "schema"
    connection = duckdb.connect()
    for file in sorted(sql.glob("*.sql")):
        connection.execute(file.read_text())
    for table, schema in TABLES.items():
        connection.register("part", schema.empty_table())
        stored, written = (
            [(name, kind) for name, kind, *_ in connection.execute(f"describe {relation}").fetchall()]
            for relation in (f"raw.{table}", "part")
        )
        assert stored == [("run_id", "VARCHAR"), *written]


def test_a_request_of_an_older_part_is_read_with_defaults() -> None:
    [row] = to_arrow("requests", [request_of(0)]).to_pylist()
    del row["messages_json"]
    assert request_from_row(row) == request_of(0)


@pytest.mark.parametrize(
    "record",
    [
        Prompt(prompt_id="p", occurrence=0, source_row=0, source_id=None, messages=[]),
        request_of(0),
        completion_of("r"),
        EngineEvent("w", 1, 0, "opened", 0.0),
        TelemetrySample(
            worker="w", engine_generation=0, at_s=0.0, engine_steps=0, in_flight_requests=0, output_tokens=0
        ),
    ],
)
def test_part_files_store_unmeasured_values_as_null(record: Any) -> None:
    """Peers, row 1: measured or NULL, never 0."""
    [row] = to_arrow(table_of(record), [record]).to_pylist()
    for name, value in row.items():
        if getattr(record, name, ...) is None:
            assert value is None, name
    assert all(row[name] is None for name in ("logprobs_json", "prompt_logprobs_json") if name in row)


@pytest.mark.parametrize(
    ("text", "stored"),
    [("naïve 日本 🙂", "naïve 日本 🙂"), ("a\ud800b", "a?b"), ("nul \x00 end", "nul \x00 end"), ("", "")],
)
def test_any_text_can_be_stored(tmp_path: Path, text: str, stored: str) -> None:
    write_part(tmp_path, "completions", "x", [completion_of("r", text=text, error_message=text)])
    write_part(
        tmp_path,
        "prompts",
        "x",
        [
            Prompt(
                prompt_id="p",
                occurrence=0,
                source_row=0,
                source_id=text,
                messages=[{"content": text}],
                target=text,
                metadata={text: text},
            )
        ],
    )
    [completion], [prompt] = rows_of(tmp_path, "completions"), rows_of(tmp_path, "prompts")
    assert completion["text"] == completion["error_message"] == prompt["target"] == prompt["source_id"] == stored
    assert json.loads(prompt["messages_json"]) == [{"content": stored}]
    assert json.loads(prompt["metadata_json"]) == {stored: stored}


def test_a_masked_tokens_log_probability_can_be_read_back() -> None:
    """vLLM gives -inf to tokens that it masked; JSON has no infinities, but DuckDB and Python read them."""
    [row] = to_arrow("completions", [completion_of("r", logprobs=[{"7": float("-inf")}, None])]).to_pylist()
    assert json.loads(row["logprobs_json"]) == [{"7": float("-inf")}, None]
    query = "select (?::json -> 0 -> '7')::double"
    assert duckdb.execute(query, [row["logprobs_json"]]).fetchall() == [(float("-inf"),)]


def test_numbers_outside_their_type_are_not_cut(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"too large|out of bounds|not in range"):
        write_part(tmp_path, "completions", "x", [completion_of("r", output_tokens=2**40)])
    assert list_parts(tmp_path, "completions") == []


def test_a_part_that_is_being_written_is_not_there(tmp_path: Path) -> None:
    whole = write_part(tmp_path, "completions", "whole", [completion_of("r")])
    torn = whole.parent / ".torn.parquet.writing"
    torn.write_bytes(whole.read_bytes()[:100])
    assert list_parts(tmp_path, "completions") == [whole]
    assert count_rows(whole) == 1


@pytest.mark.slow
def test_a_writer_killed_at_any_step_leaves_whole_parts_only(tmp_path: Path) -> None:
    """Peers, row 12: what was written stays. A part is synced, renamed into place, and its folder synced."""
    assert start_python(WRITE, tmp_path).wait() == 0
    for step, names in enumerate(["", "0", "0", "0", "01", "01"], 1):
        parts = list_parts(tmp_path / str(step), "completions")
        assert [part.name for part in parts] == [f"part-{number}.parquet" for number in names]
        assert all(pq.read_table(part).num_rows == 200 for part in parts)


def test_write_part_error_names_the_part_in_a_read_only_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match=r"Part file .*completions/x\.parquet cannot be written: .*are kept"):
        write_part(tmp_path, "completions", "x", [completion_of("r")])


def test_part_writer_keeps_every_record_once_when_threads_add_and_flush_at_once(tmp_path: Path) -> None:
    threads, each = 8, 40
    gate = threading.Barrier(threads)

    def add(writer: PartWriter, first: int) -> None:
        gate.wait()
        for number in range(first, first + each):
            writer.add(completion_of(f"{number:03d}"))
            if number % 10 == 0:
                writer.flush()
                writer.flush_old()

    writer = PartWriter(tmp_path, "w", flush_rows=7, flush_interval_s=0.01)
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(add, writer, first) for first in range(0, threads * each, each)]:
            done.result()
    writer.flush()
    found = sorted(row["request_id"] for row in rows_of(tmp_path, "completions"))
    assert found == [f"{number:03d}" for number in range(threads * each)]
    assert count_table(tmp_path, "completions") == threads * each, "the names of parts have their rows"


def test_part_writer_writes_records_again_when_the_folder_had_refused_them(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "w", flush_rows=1000, flush_interval_s=1000)
    writer.add(completion_of("kept"))
    (tmp_path / "parts").write_text("a file where a folder should be")
    with pytest.raises(StoreError):
        writer.flush()
    (tmp_path / "parts").unlink()
    writer.flush()
    writer.flush()
    assert [row["request_id"] for row in rows_of(tmp_path, "completions")] == ["kept"]


def test_the_writer_flushes_full_buffers(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "w", flush_rows=3, flush_interval_s=1000)
    for number in range(7):
        writer.add(completion_of(str(number)))
    assert [count_rows(part) for part in list_parts(tmp_path, "completions")] == [3, 3]
    writer.flush()
    assert [row["request_id"] for row in rows_of(tmp_path, "completions")] == [str(number) for number in range(7)]


def test_the_writer_flushes_old_buffers_of_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PartWriter(tmp_path, "w", flush_rows=1000, flush_interval_s=60)
    writer.add(completion_of("old"))
    later_s = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    writer.add(
        TelemetrySample(
            worker="w", engine_generation=0, at_s=0.0, engine_steps=0, in_flight_requests=0, output_tokens=0
        )
    )
    assert len(rows_of(tmp_path, "completions")) == len(rows_of(tmp_path, "telemetry")) == 1


def test_two_writers_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for number in range(2):
        writer = PartWriter(tmp_path, "worker-0", 1000, 1000)
        writer.add(completion_of(str(number)))
        writer.flush()
    assert sorted(row["request_id"] for row in rows_of(tmp_path, "completions")) == ["0", "1"]


def test_a_request_costs_less_than_a_kilobyte_with_its_text_apart(tmp_path: Path) -> None:
    """Peers, row 17: columnar, below 1 KB per request; theirs are 3.5 KB."""
    draw = random.Random(0)
    requests, completions = [], []
    for _ in range(512):
        at = sorted(draw.uniform(0, 600) for _ in range(7 + 64))
        names = ("sent_at_s", "arrived_at_s", "queued_at_s", "scheduled_at_s", "finished_at_s")
        stamps = {name: round(value, 6) for name, value in zip(names, at, strict=False)}
        ids = [draw.randrange(128_000) for _ in range(64)]
        requests.append(
            Request(
                request_id=f"{draw.getrandbits(128):032x}",
                prompt_id=f"{draw.getrandbits(128):032x}",
                occurrence=0,
                repeat_index=0,
                prompt_token_ids=ids,
                sampling={},
            )
        )
        counts = {"prompt_tokens": 64, "cached_tokens": 0, "output_tokens": 64, "preemptions": 0}
        answer = {**stamps, **counts, "finish_reason": "length", "output_token_ids": ids[::-1]}
        completions.append(completion_of(requests[-1].request_id, **answer))
    parts = [write_part(tmp_path, "requests", "x", requests), write_part(tmp_path, "completions", "x", completions)]
    assert sum(part.stat().st_size for part in parts) / 512 < 1024
