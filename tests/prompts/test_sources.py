"""Rows from files: values, lazy reading, error messages, and lines that cannot be read."""

import csv
import datetime
import itertools
import json
import os
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assayline.errors import PromptError
from assayline.prompts import load_prompts
from assayline.prompts.columns import RowReader
from assayline.prompts.read import split_head
from assayline.prompts.row import RowError, UnreadableRow
from assayline.prompts.sources import read_rows
from assayline.records import Prompt
from assayline.spec.prompts import Columns, FileSource, HubSource, PromptSpec

ROWS = [
    {"prompt": "one, two", "target": "3"},
    {"prompt": 'said "hi"\nand left', "target": None},
    {"prompt": "ü", "target": "x"},
]


def read(path: Path | str) -> list[Any]:
    return list(read_rows(FileSource(kind="file", path=str(path))))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_three_formats_give_the_same_rows(tmp_path):
    jsonl = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    csv = write(tmp_path / "a.CSV", 'prompt,target\n"one, two",3\n"said ""hi""\nand left",\nü,x\n')
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read(jsonl) == read(csv) == read(tmp_path / "a.parquet") == ROWS


def test_a_glob_is_read_in_the_order_of_names(tmp_path):
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.jsonl", json.dumps({"prompt": name}))
    (tmp_path / "folder.jsonl").mkdir()
    assert [row["prompt"] for row in read(tmp_path / "*.jsonl")] == ["a", "b", "c"]


X = '{"prompt": "x"}'
FILES: dict[str, tuple[str, str | bytes, list[dict[str, Any]]]] = {
    "a name that looks like a glob": ("a[1].jsonl", X, [{"prompt": "x"}]),
    "objects under another ending": ("a.txt", X, [{"prompt": "x"}]),
    "an array under the ending of lines": ("a.jsonl", f"\n [{X}]", [{"prompt": "x"}]),
    "lines under the ending of an array": ("a.json", f"{X}\n{X}\n", [{"prompt": "x"}] * 2),
    "blank lines and a mark, jsonl": ("a.jsonl", b'\xef\xbb\xbf\r\n{"a": 1}\r\n\r\n', [{"a": 1}]),
    "blank lines and a mark, csv": ("a.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n", [{"a": "1", "b": "2"}]),
    "a long field": ("a.csv", "a\n" + "x" * 500_000, [{"a": "x" * 500_000}]),
    "numbers of rows": ("a.csv", pd.DataFrame({"a": ["x", "y"]}).to_csv(), [{"a": "x"}, {"a": "y"}]),
    **{f"delimiter {sign!r}": (name, f'a{sign}b\n"1{sign},2"{sign}3\n', [{"a": f"1{sign},2", "b": "3"}])
       for name, sign in (("a.csv", ";"), ("a.tsv", "\t"), ("a.csv", "|"))},
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_file_is_read_as_it_is_meant(tmp_path, case):
    name, content, rows = FILES[case]
    assert read(write(tmp_path / name, content)) == rows


GOOD = {"jsonl": '{"a": 1, "b": 2}', "csv": "a,b\n1,2"}


@pytest.mark.parametrize(
    ("kind", "bad", "lines", "expected"),
    [
        ("jsonl", b'{"a": ', "line 2", ["not JSON", "one JSON object per line", 'begins \'{"a": ']),
        ("jsonl", b'\n{"a": 1, "b": 2', "line 3", ["not JSON"]),
        ("jsonl", b"[1]", "line 2", ["holds an array"]),
        ("jsonl", b"null", "line 2", ["holds null"]),
        ("jsonl", b'{"a": "\xff"}', "line 2", ["not UTF-8", "byte 7 of the line", "iconv"]),
        ("jsonl", b'{"a": ' + b"9" * 5000 + b"}", "line 2", ["not JSON (a whole number of more than 4,300 digits)"]),
        ("csv", b"1,2,3", "line 3", ["3 fields, expected 2", "(a, b)"]),
        ("csv", b"1", "line 3", ["1 fields, expected 2"]),
        ("csv", b'"1"x,2', "line 3", ["not CSV", "double quotes"]),
        ("csv", b'"1\n2\n3"x,4', "lines 3 to 5", ["not CSV"]),
        ("csv", b"1,\xff", "line 3", ["not UTF-8", "byte 2 of the line", "iconv"]),
        ("csv", b'1,"\xff\n2"', "lines 3 to 4", ["not UTF-8"]),
    ],
)
def test_a_line_that_cannot_be_read_is_one_bad_row(tmp_path, kind, bad, lines, expected):
    good = GOOD[kind].splitlines()[-1].encode()
    path = write(tmp_path / f"rows.{kind}", GOOD[kind].encode() + b"\n" + bad + b"\n" + good + b"\n")
    first, damaged, last = read(path)
    assert first == last and set(first) == {"a", "b"}
    assert isinstance(damaged, UnreadableRow)
    assert damaged.message.startswith(f"{path}, {lines}: ")
    assert [part for part in expected if part not in damaged.message] == []
    damaged.text.encode()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", 'a,b\n1,2\n3,"4\n5,6\n', ["a.csv, lines 3 to 4", "not CSV (unexpected end of data)"]),
        ("a.csv", b"\xff,b\n1,2\n", ["a.csv, line 1", "not UTF-8"]),
        ("a.csv", '"a"x,b\n1,2\n', ["a.csv, line 1", "not CSV"]),
        ("a.csv", "a,a\n1,2\n", ["a.csv, line 1", "same name twice", "'a'"]),
        ("b.csv", "a,,b\n1,2,3\n", ["the header has no name"]),
        ("a.parquet", "PAR1 nonsense", ["a.parquet", "after row 0", "damaged"]),
        ("a.txt", "a,b", ["a.txt", "ending .txt", ".jsonl", "hint: rename it"]),
        ("a", "", ["ending (none)"]),
    ],
)
def test_damage_that_leaves_no_place_to_read_on_from_is_told_with_its_place(tmp_path, name, content, expected):
    with pytest.raises(PromptError) as caught:
        read(write(tmp_path / name, content))
    assert [part for part in expected if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: 1\n" * 20, r"Each of the first 10 rows cannot be read\. .*line 1: not JSON"),
        ("[1]", r"The only row cannot be read\. .*element 1: it is int"),
        ('{"a": 1}\n'.encode("utf-16"), r"Each of the first 2 rows cannot be read\. .*line 1: not UTF-8"),
    ],
)
def test_a_file_of_another_format_is_refused_at_once(tmp_path, content, expected):
    rows = read_rows(FileSource(kind="file", path=str(write(tmp_path / "a.jsonl", content))))
    with pytest.raises(PromptError, match=expected):
        split_head(rows)


def test_a_head_ends_with_the_first_row_that_can_be_read(tmp_path):
    rows = read_rows(FileSource(kind="file", path=str(write(tmp_path / "a.jsonl", "x\n" * 9 + '{"a": 1}\n{"a": 2}\n'))))
    head, first = split_head(rows)
    assert (len(head), first) == (10, {"a": 1})
    assert list(rows) == [{"a": 2}]


TEMPLATE = "{{ value }}"


def render(value: Any, template: str = TEMPLATE) -> str:
    return RowReader(Columns(), template).read({"value": value}).messages[0]["content"]


NESTED = [{"name": "ä", "size": Decimal("1.50"), "day": datetime.date(2026, 1, 2), "none": None}]

ARRIVES = {
    "a long integer": (pa.array([2**63 - 1]), "9223372036854775807"),
    "a longer one": (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    "an integer beside a null": (pa.array([None, 7])[1:], "7"),
    "a double": (pa.array([0.1]), "0.1"),
    "a double of 32 bits": (pa.array([0.1], pa.float32()), "0.1"),
    "32 bits in a list": (pa.array([[0.1, None]], pa.list_(pa.float32())), "[0.1, null]"),
    "32 bits in an object": (pa.array([{"x": 0.1}], pa.struct([("x", pa.float32())])), '{"x": 0.1}'),
    "a decimal": (pa.array([Decimal("1.50")]), "1.50"),
    "a decimal of 38 digits": (pa.array([Decimal("12345678901234567890123456789012345.678")]),
                               "12345678901234567890123456789012345.678"),
    "zero in ten places": (pa.array([Decimal(0)], pa.decimal128(20, 10)), "0.0000000000"),
    "a small decimal": (pa.array([Decimal("0.00000001")]), "0.00000001"),
    "a date": (pa.array([datetime.date(2026, 1, 2)]), "2026-01-02"),
    "a moment": (pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)]), "2026-01-02 03:04:05"),
    "a moment with its zone": (pa.array([0], pa.timestamp("ms", tz="UTC")), "1970-01-01 00:00:00+00:00"),
    "nanoseconds": (pa.array([1_234_567_890_123_456_789], pa.timestamp("ns")), "2009-02-13 23:31:30.123456"),
    "nanoseconds in a list": (pa.array([[1_500]], pa.list_(pa.timestamp("ns"))), '["1970-01-01T00:00:00.000001"]'),
    "a time": (pa.array([3_723_000_000_001], pa.time64("ns")), "01:02:03"),
    "true": (pa.array([True]), "true"),
    "a whole number beside a missing one": (pa.array([7.0, None]), "7"),
    "a large double": (pa.array([1e300, None, float("inf")]), "1e+300"),
    "a double that is whole": (pa.array([7.0]), "7.0"),
    "a day": (pa.array([datetime.datetime(2026, 1, 2)]), "2026-01-02"),
    "a list": (pa.array([["a", "it's", None]]), '["a", "it\'s", null]'),
    "objects in a list": (pa.array([NESTED]), '[{"name": "ä", "size": "1.50", "day": "2026-01-02"}]'),
    "a map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), '{"k": 1}'),
    "one of a few texts": (pa.array(["x", "x"]).dictionary_encode(), "x"),
    "text with everything": (pa.array([" a\tb\n"]), " a\tb\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRIVES)
def test_parquet_values_are_rendered_as_plain_text(tmp_path, name):
    array, expected = ARRIVES[name]
    pq.write_table(pa.table({"value": array}), tmp_path / "a.parquet")
    assert render(read(tmp_path / "a.parquet")[0]["value"]) == expected


def test_nested_values_of_parquet_can_be_walked(tmp_path):
    values = pa.array([{"names": ["a", "b"], "sizes": [("x", 0.5)]}], pa.struct([
        ("names", pa.list_(pa.string())), ("sizes", pa.map_(pa.string(), pa.float64())),
    ]))  # fmt: skip
    pq.write_table(pa.table({"value": values}), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    assert render(row["value"], "{{ value.names[1] }} {{ value.sizes.x }} {{ value.names|join('/') }}") == "b 0.5 a/b"
    assert render(row["value"], "{{ value|tojson }}") == '{"names": ["a", "b"], "sizes": {"x": 0.5}}'


def test_sources_reject_bytes_as_text(tmp_path):
    pq.write_table(pa.table({"value": pa.array([b"x"])}), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    for template in (TEMPLATE, "{{ value|tojson }}", "{{ [value] }}"):
        with pytest.raises(RowError, match="holds bytes, expected text"):
            render(row["value"], template)


@pytest.mark.parametrize(
    "text", ["0", "007", "1.50", "1e5", "9" * 5000, "NaN", "null", "None", "True", "2026-01-02", '[1, "a"]', " x "]
)
def test_csv_is_text_and_stays_as_it_is_written(tmp_path, text):
    quoted = '"' + text.replace('"', '""') + '"'
    (row,) = read(write(tmp_path / "a.csv", f"value,other\n{quoted},1\n"))
    assert render(row["value"]) == text


@pytest.mark.parametrize("cell", ["", '""'])
def test_an_empty_cell_of_csv_is_null(tmp_path, cell):
    (row,) = read(write(tmp_path / "a.csv", f"value,other\n{cell},1\n"))
    assert row == {"value": None, "other": "1"}
    with pytest.raises(RowError, match="a value that is null: value"):
        render(row["value"])
    assert render(row["value"], "{{ value or '' }}!") == "!"


@pytest.mark.parametrize(
    ("name", "expected"), [("none.jsonl", "does not exist"), ("*.none", "No file matches"), ("", "is a folder")]
)
def test_a_path_without_a_file_is_an_error(tmp_path, name, expected):
    with pytest.raises(PromptError, match=expected):
        read(tmp_path / name)


def test_lines_are_read_as_they_are_asked_for(tmp_path):
    path = write(tmp_path / "a.csv", "a\n" + "1\n" * 3 + '"damage')
    rows = read_rows(FileSource(kind="file", path=str(path)))
    assert len(list(itertools.islice(rows, 3))) == 3
    with pytest.raises(PromptError, match="line 5"):
        next(rows)


def test_a_dataset_is_streamed(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []

    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return ({"prompt": str(number)} for number in itertools.count())

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_rows(HubSource(kind="hub", dataset="org/name", subset="main", split="train", revision="v1"))
    assert [row["prompt"] for row in itertools.islice(rows, 2)] == ["0", "1"]
    assert calls == [(("org/name",), {"name": "main", "split": "train", "revision": "v1", "streaming": True})]


def test_a_dataset_in_a_folder_is_really_read(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "test.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n')
    assert list(read_rows(HubSource(kind="hub", dataset=str(tmp_path)))) == [{"prompt": "a"}, {"prompt": "b"}]


def test_hub_dataset_is_read_from_the_cache_when_offline(tmp_path, monkeypatch):
    """As `hf download --repo-type dataset` leaves it; its README has the split's file."""
    datasets, huggingface_hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    dataset = tmp_path / "hub" / "datasets--org--name"
    snapshot = dataset / "snapshots" / ("a" * 40)
    for folder in (dataset / "refs", snapshot / "rows"):
        folder.mkdir(parents=True)
    write(dataset / "refs" / "main", "a" * 40)
    split = "configs:\n- config_name: default\n  data_files:\n  - {split: test, path: rows/some.jsonl}\n"
    write(snapshot / "README.md", f"---\n{split}---\n")
    write(snapshot / "rows" / "some.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n')
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert list(read_rows(HubSource(kind="hub", dataset="org/name"))) == [{"prompt": "a"}, {"prompt": "b"}]


def test_whole_numbers_of_a_dataset_have_no_point_next_to_missing_ones(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "test.csv", "n,x,prompt\n1,1.5,a\n,2,b\n30,,c\n")
    rows = list(read_rows(HubSource(kind="hub", dataset=str(tmp_path))))
    texts = [RowReader(Columns(target="n"), "{{ n or '-' }} {{ x or '-' }}").read(row) for row in rows]
    assert [(one.messages[0]["content"], one.target) for one in texts] == [
        ("1 1.5", "1"),
        ("- 2", None),
        ("30 -", "30"),
    ]


def test_hub_dataset_that_fails_raises(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "train.jsonl", '{"prompt": "a"}\n')
    with pytest.raises(PromptError, match="split nonsense"):
        list(read_rows(HubSource(kind="hub", dataset=str(tmp_path), split="nonsense")))


def test_hub_source_error_names_the_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PromptError, match=r"pip install 'assayline\[hub\]'"):
        next(read_rows(HubSource(kind="hub", dataset="org/name")))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("a.jsonl.gz", '{"a": "ü"}'), ("a.jsonl", '{"a": "ü"}'), ("a.json.zst", '[{"a": "ü"}]'), ("a.csv", "a\nü")],
)
def test_compressed_files_are_read(tmp_path, kind, name, text):
    with pa.output_stream(str(tmp_path / name), compression=kind) as file:
        file.write(text.encode())
    assert read(tmp_path / name) == [{"a": "ü"}]
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(PromptError, match=r"a\..* cannot be read"):
        read(tmp_path / name)


def test_csv_is_read_through_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    writing = threading.Thread(target=(tmp_path / "a.csv").write_text, args=("a;b\n1;2\n",))
    writing.start()
    assert read(tmp_path / "a.csv") == [{"a": "1", "b": "2"}]
    writing.join()


def call(**arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


TALKS = [
    [{"role": "user", "content": "Tide?"},
     {"role": "assistant", "content": "", "tool_calls": [call(harbour="Wick", at={"h": 1})]},
     {"role": "tool", "content": "12:40", "tool_call_id": "c"}, {"role": "user", "content": "And?"}],
    [{"role": "user", "content": "Wind?"},
     {"role": "assistant", "content": "", "tool_calls": [call(hour=12, units=["kn", "m/s"], at={"m": 0.5}), call()]},
     {"role": "tool", "content": "14", "tool_call_id": "c"}, {"role": "user", "content": "And?"}],
]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"hour": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g", "parameters": {"properties": {"at": {"enum": ["x"]}}}}},
]
DOORS = ["jsonl", "json", "csv", "parquet", "text in parquet", "hub", "inline", "python", "sharegpt",
         "sharegpt in parquet", "batch"]  # fmt: skip


def open_door(door: str, rows: list[dict[str, Any]], folder: Path, monkeypatch: Any) -> dict[str, Any]:
    """A source that gives these rows, written as files of its kind are."""
    path = folder / {"json": "a.json", "csv": "a.csv"}.get(door, "a.parquet" if "parquet" in door else "a.jsonl")
    texts = [{name: json.dumps(value) for name, value in row.items()} for row in rows]
    if door.startswith("sharegpt"):
        rows = [{"conversations": row["messages"], "tools": row["tools"]} for row in rows]
    if door == "batch":
        rows = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", **row}}
            for number, row in enumerate(rows)
        ]
        for row in rows:
            for one in itertools.chain.from_iterable(m.get("tool_calls", []) for m in row["body"]["messages"]):
                one["function"]["arguments"] = json.dumps(one["function"]["arguments"])
    if "parquet" in door or door == "hub":
        pq.write_table(pa.Table.from_pylist(texts if door.startswith("text") else rows), path.with_suffix(".parquet"))
    elif door == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(texts)
    else:
        path.write_text(json.dumps(rows) if door == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    if door == "python":
        monkeypatch.chdir(folder)
        name = "door_" + folder.name
        write(folder / f"{name}.py", f"import json\ndef rows(): return map(json.loads, open({str(path)!r}))\n")
        return {"kind": "python", "function": f"{name}:rows"}
    if door in ("hub", "inline"):
        return (
            {"kind": "hub", "dataset": str(folder), "split": "train"}
            if door == "hub"
            else {"kind": "inline", "rows": rows}
        )
    return {
        "kind": {"batch": "openai_batch"}.get(door, door.split()[0] if door.startswith("sharegpt") else "file"),
        "path": str(path),
    }


@pytest.mark.parametrize("door", DOORS)
def test_a_conversation_is_the_same_through_every_door(tmp_path, monkeypatch, door):
    if door == "hub":
        pytest.importorskip("datasets")
    rows = [{"messages": talk, "tools": [tool]} for talk, tool in zip(TALKS, TOOLS, strict=True)]
    source = open_door(door, json.loads(json.dumps(rows)), tmp_path, monkeypatch)
    prompts = [one for one in load_prompts(PromptSpec.model_validate({"source": source})) if isinstance(one, Prompt)]
    assert [one.messages for one in prompts] == TALKS
    assert [one.body and one.body.variables for one in prompts] == [{"tools": [tool]} for tool in TOOLS]


@pytest.mark.parametrize("door", ["jsonl", "csv", "parquet", "inline"])
def test_rows_of_function_calling_are_asked_as_written_or_refused_by_the_type_of_a_part(tmp_path, monkeypatch, door):
    """Calls next to a query, as JSON text; and Anthropic's parts, which no chat template has."""
    calls, tools = [{"name": "tide", "arguments": {"port": "Wick"}}], [{"name": "tide", "parameters": {"port": {}}}]
    rows = [{"query": "Tide?", "answers": json.dumps(calls), "tools": json.dumps(tools)}]
    source = open_door(door, rows, tmp_path, monkeypatch)
    if door == "csv":
        write(tmp_path / "a.csv", pd.DataFrame(rows).to_csv(index=False))
    columns = {"prompt": "query", "target": "answers"}
    (prompt,) = load_prompts(PromptSpec.model_validate({"source": source, "columns": columns}))
    assert (prompt.messages, prompt.target) == ([{"role": "user", "content": "Tide?"}], json.dumps(calls))
    assert prompt.body.variables == {"tools": tools}
    use = {"type": "tool_use", "id": "t", "name": "tide", "input": {"port": "Wick"}}
    text = {"type": "text", "text": "Tide?"}
    talk = [{"role": "user", "content": [text]}, {"role": "assistant", "content": [use]}]
    source = open_door(door, [{"messages": talk}], tmp_path, monkeypatch)
    (bad,) = load_prompts(PromptSpec.model_validate({"source": source}))
    assert "Message 2, part 1 is of type 'tool_use', expected text or" in bad.message


def test_null_that_was_written_stays_and_padding_of_parquet_is_null_when_asked_for(tmp_path):
    rows = [{"t": {"a": 1, "b": None}}, {"t": {"a": None, "b": 2}}]
    jsonl = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for path, expected in ((jsonl, '{"a": 1, "b": null}-'), (tmp_path / "a.parquet", '{"a": 1}-')):
        first = read(path)[0]
        assert RowReader(Columns(), "{{ t }}{{ t.b or '-' }}").read(first).messages[0]["content"] == expected
        with pytest.raises(RowError, match="null"):
            RowReader(Columns(), "{{ t.b }}").read(first)


@pytest.mark.parametrize("text", ["1.50", "1e5", "12345678901234567890.125", "0.10"])
def test_number_of_a_json_file_is_printed_as_it_is_written(tmp_path, text):
    (row,) = read(write(tmp_path / "a.jsonl", f'{{"value": {text}, "target": {text}}}'))
    parts = RowReader(Columns(metadata=["value"]), "{{ value }} {{ 'x' ~ value }}").read(row)
    assert (parts.messages[0]["content"], parts.target) == (f"{text} x{text}", text)
    assert type(parts.metadata["value"]) is float


def test_values_of_numpy_and_pandas_are_those_of_their_rows():
    row = {"n": np.int64(7), "yes": np.bool_(True), "xs": np.array([1, 2]), "x": np.float64(0.5), "day": pd.NaT}
    template = "{{ n }} {{ yes }} {{ xs }} {{ x }} {{ day or '-' }} {{ [n, yes] }}"
    assert RowReader(Columns(), template).read(row).messages[0]["content"] == "7 true [1, 2] 0.5 - [7, true]"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"chosen": [], "rejected": []},
            r"columns.messages to chosen, and prompts.turns to first. Columns: chosen, rej",
        ),
        ({"doc_id": 0, "arguments": {}}, r'template to "{{ arguments.gen_args_0.arg_0 }}". Columns: arguments, doc_id'),
        ({"Timestamp": 5, "Request tokens": 4}, "kind to trace. Columns: Request tokens"),
        ({"question": "q"}, "name yours in prompts.columns.messages or prompts.columns.prompt.*Columns: question"),
    ],
)
def test_file_of_another_kind_is_refused_with_its_columns_and_the_line_to_write(row, words):
    with pytest.raises(PromptError, match=words.replace("{", r"\{")):
        RowReader(Columns(), None).check_first(row)
