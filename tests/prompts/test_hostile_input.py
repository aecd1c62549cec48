"""Prompt files as they should not be: each gives rows or one sentence, never a traceback, and count in = count out.

A file goes the whole way: sources, templates, chat rendering, part files, DuckDB, and what can be answered is answered
by the fake engine. Some files are well formed and hold odd values, others are damaged.
"""

import csv
import datetime
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from run_kit import order_of

from assayline.engines.fake import FakeEngine
from assayline.errors import AssaylineError, ModelError, PromptError, SpecError
from assayline.model import identify_model
from assayline.prompts import load_prompts
from assayline.records import Completion, Prompt, Request
from assayline.requests.build import build_requests
from assayline.requests.chat import ChatRenderer
from assayline.spec.file import parse_spec
from assayline.spec.prompts import ChatSpec, PromptSpec
from assayline.store.database import Connection, connect
from assayline.store.ingest import load_parts
from assayline.store.parts import write_part

pytestmark = pytest.mark.slow

PATIENT = settings(
    max_examples=settings.default.max_examples // 4, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CONTEXT_TOKENS = 2048

SURROGATES = st.sampled_from(["\ud800", "a\udfffb", "\udc80"])
ODD_TEXTS = st.sampled_from([
    "", " ", "\0", "a\0b", "\ufeff", "\u202e", "\U0010ffff", "e\u0301", "\r\n", "\x85\u2028", "'; drop table runs; --",
    "{{ 7 * 7 }}", "{% raw %}", "<|end|>", "<bos>", "NaN", "null", "{}", "[]", "a" * 70_000, "\t\x0b\x1b[31m", "%s%n",
])  # fmt: skip
TEXTS = st.one_of(st.text(max_size=20), ODD_TEXTS, SURROGATES)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([2**63, -(2**64), 10**4000, -1, 1e308, 5e-324, -0.0]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries({}, optional={"role": VALUES, "content": VALUES, "tool_calls": VALUES, "name": TEXTS})
COLUMNS = ("prompt", "messages", "question", "target", "id", "sampling", "extra")
ROW = st.fixed_dictionaries(
    {"question": st.one_of(TEXTS, VALUES)},
    optional={
        "prompt": st.one_of(TEXTS, VALUES),
        "messages": st.one_of(st.lists(MESSAGE, max_size=3), TEXTS, VALUES),
        "target": VALUES,
        "id": VALUES,
        "sampling": st.one_of(VALUES, st.dictionaries(st.sampled_from(["seed", "n", "max_tokens"]), VALUES)),
        "extra": VALUES,
    },
)
ROWS = st.lists(ROW, max_size=5).flatmap(lambda rows: st.just(rows + rows[:2]))  # duplicates among them
TEMPLATES = st.sampled_from([
    None, "{{ question }}", "{{ row }}", "{{ question|tojson }}", "{{ question * 3 }}", "{{ row['question'].x.y }}",
    "{% for x in question %}{{ x }}{% endfor %}", "{{ question|length + 1 }}", "{{ '%s' % question }}", "{{ 1 // 0 }}",
    [{"role": "system", "content": "{{ extra }}"}, {"role": "user", "content": "{{ question }}"}],
])  # fmt: skip
CHAT = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
CHAT_TEMPLATES = st.sampled_from([
    CHAT, "plain", "{{ messages }}", "{% for m in messages %}{{ m.content.strip() }}{% endfor %}",
    "{% if messages[0].role != 'user' %}{{ raise_exception(messages[0].role) }}{% endif %}{{ messages[0].content }}",
])  # fmt: skip
PROMPTS = st.fixed_dictionaries(
    {"template": TEMPLATES},
    optional={
        "columns": st.fixed_dictionaries({}, optional={
            "target": st.just("target"), "id": st.just("id"), "sampling": st.just("sampling"),
            "metadata": st.lists(st.sampled_from(COLUMNS), max_size=2),
        }),
        "shuffle_seed": st.integers(0, 3),
        "limit": st.integers(1, 3),
    },
)  # fmt: skip


@dataclass
class Way:
    """From a file to the database and back."""

    folder: Path
    tokenizer: Any
    connection: Connection
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def go(self, file: Path, prompts: dict[str, Any], chat: str = CHAT, repeats: int = 1) -> int | None:
        """Rows that were counted at the end, after a check that nothing was lost; None if the file was refused."""
        source = {"kind": "file", "path": str(file)}
        data = {"model": "m", "prompts": {**prompts, "source": source, "repeats": repeats}, "chat": {"template": chat}}
        try:
            spec = parse_spec({**data, "sampling": {"max_tokens": 4}, "engine": {"backend": "fake"}})
            renderer = ChatRenderer(spec.chat, self.tokenizer, CONTEXT_TOKENS)
            rows = load_prompts(spec.prompts, self.tokenizer)
            prepared = list(build_requests(spec, rows, renderer))
        except AssaylineError as error:
            assert str(error).encode(), "a message is text that can be printed"
            return None
        asked = [item.prompt for item in prepared]
        requests = [request for item in prepared for request in item.requests]
        answers = [error for item in prepared for error in item.errors]
        assert all(len(item.requests) == repeats and len(item.errors) in (0, repeats) for item in prepared)
        ready = [request for item in prepared for request in item.ready]
        answers += list(FakeEngine(order_of()).generate(ready))
        self._store_and_count(asked, requests, answers, repeats)
        return len(asked)

    def _store_and_count(
        self, asked: list[Prompt], requests: list[Request], answers: list[Completion], repeats: int
    ) -> None:
        run_id = f"run-{next(self.numbers)}"
        for table, records in {"prompts": asked, "requests": requests, "completions": answers}.items():
            write_part(self.folder / run_id, table, "part", records)
        load_parts(self.connection, run_id, self.folder / run_id)
        self.connection.execute(
            "insert into runs by name select ? as run_id, 'hostile' as name, 's' as prompt_set, 'm' as model, "
            "'h' as spec_hash, '{}' as spec_json, '0' as assayline_version, 'h' as host_name, 1 as attempt, "
            "'running' as state, current_localtimestamp() as started_at, ? as prompt_rows, ? as expected_requests",
            [run_id, len(asked), len(requests)],
        )
        counts = "select count(*), count(distinct (prompt_id, occurrence)) from prompts where run_id = ?"
        assert self.connection.execute(counts, [run_id]).fetchall() == [(len(asked), len(asked))]
        counts = "select count(*), count(distinct request_id) from requests where run_id = ?"
        assert self.connection.execute(counts, [run_id]).fetchall() == [(len(asked) * repeats,) * 2]
        counts = "select count(*), count(*) filter (error_kind is null), count(text) from completions where run_id = ?"
        good = sum(answer.error_kind is None for answer in answers)
        assert self.connection.execute(counts, [run_id]).fetchall() == [(len(requests), good, good)]


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory, session_tokenizer: Any) -> Iterator[Way]:
    """One database for all files; in the end, every metric of all of them can be read, and every run is sound."""
    folder = tmp_path_factory.mktemp("hostile")
    with connect(folder / "test.duckdb", 10) as connection:
        yield Way(folder, session_tokenizer, connection)
        views = connection.execute(
            "select schema_name || '.' || view_name from duckdb_views() where not internal"
        ).fetchall()
        assert ("internal.accuracy",) in views
        for (view,) in views:
            connection.execute(f"select * from {view}").fetchall()
        assert connection.execute("select count(*) from request_integrity where not is_sound").fetchall() == [(0,)]
        assert connection.execute("select count(*) > 50 from stg_requests").fetchall() == [(True,)]


def encode_json(row: dict[str, Any], ascii_only: bool) -> bytes:
    return json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def expected_rows(rows: list[Any], prompts: dict[str, Any]) -> int:
    return min(len(rows), prompts.get("limit") or len(rows))


@PATIENT
@given(rows=ROWS, prompts=PROMPTS, chat=CHAT_TEMPLATES, ascii_only=st.booleans(), repeats=st.integers(1, 2))
@example(rows=[{"question": "a"}] * 3, prompts={"template": None}, chat="plain", ascii_only=True, repeats=1)
@example(rows=[{"question": "\ud800"}] * 3, prompts={"template": "{{ row }}"}, chat="plain", ascii_only=True, repeats=2)
def test_jsonl_of_odd_values(way, tmp_path, rows, prompts, chat, ascii_only, repeats):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join(encode_json(row, ascii_only) for row in rows))
    found = way.go(file, prompts, chat, repeats)
    assert found in (None, expected_rows(rows, prompts))


@PATIENT
@given(
    rows=st.lists(st.lists(TEXTS, min_size=3, max_size=3), max_size=5),
    prompts=PROMPTS,
    header=st.sampled_from([("question", "target", "id"), ("prompt", "extra", "sampling"), ("messages", "\ufeff", "")]),
)
def test_csv_of_odd_values(way, tmp_path, rows, prompts, header):
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    file = tmp_path / "rows.csv"
    file.write_bytes(text.getvalue().encode("utf-8", "surrogatepass"))
    assert way.go(file, prompts) in (None, expected_rows(rows, prompts))


ARROW_VALUES = st.sampled_from([
    pa.array([b"\xff\0", None]), pa.array([2**63 - 1, None]), pa.array([float("nan"), float("inf")]),
    pa.array(["a\0b", None]), pa.array([datetime.datetime(9999, 12, 31, 23, 59), None]), pa.array([[1, None], []]),
    pa.array([Decimal("1e20"), None]), pa.array([{"role": "user", "content": None}, None]),
    pa.array([[("k", 1)], None], type=pa.map_(pa.string(), pa.int64())), pa.array([None, None]),
    pa.array([2**62, 1], type=pa.timestamp("ns")), pa.array([2**62, 1], type=pa.timestamp("us", tz="Europe/Berlin")),
    pa.array([2**52, 1], type=pa.timestamp("s")), pa.array([-(2**31), 1], type=pa.date32()),
    pa.array([2**62, 1], type=pa.duration("us")), pa.array([1, 2**60], type=pa.time64("ns")),
    pa.array([0, 1], type=pa.timestamp("us", tz="No/Where")), pa.array(["x", "x"]).dictionary_encode(),
    pa.array([[{"role": "user", "content": "hi"}], [{"role": "user", "content": None}]]),
])  # fmt: skip


@PATIENT
@given(
    columns=st.dictionaries(st.one_of(st.sampled_from(COLUMNS), st.text(max_size=3)), ARROW_VALUES, max_size=4),
    prompts=PROMPTS,
)
def test_parquet_of_odd_types(way, tmp_path, columns, prompts):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), file)
    assert way.go(file, prompts) in (None, expected_rows([0, 0], prompts) if columns else 0)


GOOD = {
    "jsonl": b'{"question": "one"}\n{"question": "two"}\n',
    "csv": b'question,target\r\n"one, ""or""",1\r\ntwo,2\r\n',
}
INSERTED = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([
        b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n\n", b'"', b"\\", b"{" * 3000, b'{"a":' * 3000,
        b"[" * 100_000, b'"' + b"x" * 3_000_000 + b'"', b"9" * 5000, b"1e999999", b"NaN", b"-Infinity", b",,,", b"\x1a",
        '{"question": "ö"}\n'.encode("utf-16"), b"\x1f\x8b\x08", b"PAR1",
    ]),
)  # fmt: skip


@PATIENT
@given(kind=st.sampled_from(sorted(GOOD)), data=st.data(), prompts=PROMPTS)
def test_text_files_with_foreign_bytes(way, tmp_path, kind, data, prompts):
    content = GOOD[kind]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        content = content[:start] + data.draw(INSERTED) + content[start + data.draw(st.integers(0, 2)) :]
    file = tmp_path / f"rows.{kind}"
    file.write_bytes(content)
    found = way.go(file, prompts)
    assert found is None or found <= content.count(b"\n") + 1


@PATIENT
@given(data=st.data())
def test_damaged_parquet(way, tmp_path, data):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"question": [f"text {number}" for number in range(50)]}), file)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    assert way.go(file, {"template": "{{ question }}"}) in (None, 50)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "bom.jsonl", "blank.jsonl", "header.csv"])
def test_files_without_rows_are_refused(way, tmp_path, name):
    content = {"bom": b"\xef\xbb\xbf", "blank": b"\n \n\t\n", "header": b"question\n"}.get(name.split(".")[0], b"")
    (tmp_path / name).write_bytes(content)
    assert way.go(tmp_path / name, {"template": "{{ question }}"}) is None


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-of-that-name/x", "\ud800", "[", "/", "/proc/self/mem"])
def test_prompts_reject_names_of_missing_files(tokenizer, name):
    source = {"kind": "file", "path": name}
    with pytest.raises(PromptError):
        list(load_prompts(PromptSpec.model_validate({"source": source})))
    with pytest.raises((SpecError, ModelError)):
        ChatRenderer(ChatSpec.model_construct(**{**ChatSpec().model_dump(), "template": name}), tokenizer)
    with pytest.raises(ModelError):
        identify_model(name)


@pytest.mark.parametrize("depth", [500, 990, 100_000])
@pytest.mark.parametrize("template", [None, "{{ prompt }}"])
@pytest.mark.parametrize("column", ["prompt", "messages", "target", "extra"])
def test_depth_is_a_row_or_an_error(way, tmp_path, depth, template, column):
    """A depth that one step can do may be too much for the next: parsing, checking, digesting, writing."""
    good = b'{"prompt": "p", "extra": 1}\n'
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        value = opening * depth + b"1" + closing * depth
        deep = b'{"prompt": "p", "extra": 1, "%s": %s}\n' % (column.encode(), value)
        file = tmp_path / "deep.jsonl"
        file.write_bytes(good + deep + good)
        found = way.go(file, {"template": template, "columns": {"metadata": ["extra"]}})
        assert found in (None, 3)
        assert found == 3 or depth >= 900


def test_a_huge_field_is_one_row(way, tmp_path):
    """One megabyte is found too long for the context when it is tokenised, more before; each is a row of its own."""
    for size in (1_000_000, 9_000_000):
        file = tmp_path / "huge.jsonl"
        rows = [{"question": "a"}, {"question": "b" * size, "target": "c" * size}, {"question": "d"}]
        file.write_bytes(b"\n".join(encode_json(row, True) for row in rows))
        assert way.go(file, {"template": "{{ question }}"}) == 3
        assert way.go(file, {"columns": {"prompt": "question"}}, "plain") == 3


def test_hostile_sampling_values_of_rows_do_not_stop_the_run(way, tmp_path):
    file = tmp_path / "rows.jsonl"
    values = [0, -1, 10**30, 1.5, "many", None, True, [1], {"a": 1}, float("nan"), "\ud800"]
    names = ("max_tokens", "n", "seed", "stop", "\0", "a'b\"c")
    rows = [{"prompt": "p", "sampling": {name: value}} for name in names for value in values]
    file.write_bytes(b"\n".join(encode_json(row, True) for row in rows))
    assert way.go(file, {"columns": {"sampling": "sampling"}}) == len(rows)
