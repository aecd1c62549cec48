"""Rows from files: what is read, how lazily, and what the errors say."""

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.errors import PromptError
from assayline.prompts.sources import read_rows
from assayline.spec.prompts import FileSource, HubSource, InlineSource

ROWS = [
    {"prompt": "one, two", "target": "3"},
    {"prompt": 'said "hi"\nand left', "target": ""},
    {"prompt": "ü", "target": "x"},
]


def read(path: Path | str, format: Any = "auto") -> list[dict[str, Any]]:
    return list(read_rows(FileSource(path=str(path), format=format)))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_three_formats_give_the_same_rows(tmp_path: Path) -> None:
    jsonl = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    csv = write(tmp_path / "a.CSV", 'prompt,target\n"one, two",3\n"said ""hi""\nand left",\nü,x\n')
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read(jsonl) == read(csv) == read(tmp_path / "a.parquet") == ROWS


def test_a_glob_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.jsonl", json.dumps({"prompt": name}))
    (tmp_path / "folder.jsonl").mkdir()
    assert [row["prompt"] for row in read(tmp_path / "*.jsonl")] == ["a", "b", "c"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a[1].jsonl", '{"prompt": "x"}')) == [{"prompt": "x"}]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", b'\xef\xbb\xbf\r\n{"a": 1}\r\n\r\n')) == [{"a": 1}]
    assert read(write(tmp_path / "b.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n")) == [{"a": "1", "b": "2"}]


def test_a_long_csv_field_is_read(tmp_path: Path) -> None:
    assert len(read(write(tmp_path / "a.csv", "a\n" + "x" * 500_000))[0]["a"]) == 500_000


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', ["a.jsonl, line 2", "not JSON", "one JSON object per line"]),
        ("a.jsonl", '{"a": 1}\n\n[1]\n', ["a.jsonl, line 3", "holds an array", "jq -c"]),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', ["a.jsonl, line 2", "not UTF-8", "iconv"]),
        ("a.csv", "a,b\n1,2\n1,2,3\n", ["a.csv, line 3", "3 fields, expected 2", "a, b"]),
        ("a.csv", "a,b\n1\n", ["a.csv, line 2", "1 fields, expected 2"]),
        ("a.csv", 'a,b\n"1,2\n', ["a.csv, line", "not CSV"]),
        ("a.csv", b"a,b\n1,\xff\n", ["a.csv, line 2", "not UTF-8"]),
        ("a.csv", "a,a\n1,2\n", ["a.csv, line 1", "same name twice", "'a'"]),
        ("a.parquet", "PAR1 nonsense", ["a.parquet", "after row 0", "damaged"]),
        ("a.json", "[]", ["a.json", "ending .json", ".jsonl", "prompts.source.format"]),
        ("a", "", ["ending (none)"]),
    ],
)
def test_damage_is_told_with_its_place(tmp_path: Path, name: str, content: str | bytes, expected: list[str]) -> None:
    with pytest.raises(PromptError) as caught:
        read(write(tmp_path / name, content))
    assert [part for part in expected if part not in str(caught.value)] == []


def test_a_parquet_file_cut_in_its_data_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [os.urandom(64).hex() for _ in range(2000)]}), path, compression="none")
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    with pytest.raises(PromptError, match=r"a\.parquet, after row 0: not readable as Parquet"):
        read(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("none.jsonl", "does not exist"), ("*.none", "No file matches"), ("", "is a folder")],
)
def test_a_path_without_a_file_is_an_error(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(PromptError, match=expected):
        read(tmp_path / name)


def test_a_format_given_beats_the_ending(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", '{"a": 1}'), format="jsonl") == [{"a": 1}]


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1}\n' * 3 + "damage")
    rows = read_rows(FileSource(path=str(path)))
    assert len(list(itertools.islice(rows, 3))) == 3
    with pytest.raises(PromptError, match="line 4"):
        next(rows)


@given(st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text()), min_size=1))
def test_inline_rows_come_as_they_are(rows: list[dict[str, Any]]) -> None:
    assert list(read_rows(InlineSource(rows=rows))) == rows


def test_a_dataset_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    calls = []

    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return ({"prompt": str(number)} for number in itertools.count())

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_rows(HubSource(dataset="org/name", subset="main", split="train", revision="v1"))
    assert [row["prompt"] for row in itertools.islice(rows, 2)] == ["0", "1"]
    assert calls == [(("org/name",), {"name": "main", "split": "train", "revision": "v1", "streaming": True})]


def test_a_dataset_in_a_folder_is_really_read(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write(tmp_path / "test.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n')
    assert list(read_rows(HubSource(dataset=str(tmp_path)))) == [{"prompt": "a"}, {"prompt": "b"}]


def test_a_dataset_that_fails_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write(tmp_path / "train.jsonl", '{"prompt": "a"}\n')
    with pytest.raises(PromptError, match="split nonsense"):
        list(read_rows(HubSource(dataset=str(tmp_path), split="nonsense")))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PromptError, match=r"pip install 'assayline\[hub\]'"):
        next(read_rows(HubSource(dataset="org/name")))
