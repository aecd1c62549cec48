"""Prompt sets as a whole: identity, duplicates, limit, shuffle, bad rows, laziness, memory."""

import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.digests import digest_json
from assayline.errors import PromptError
from assayline.prompts import BadRow, load_prompts, read
from assayline.prompts.read import select_rows
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec

SMALL_ROW = st.fixed_dictionaries({"prompt": st.sampled_from("abc"), "target": st.integers(0, 1)})
SMALL_ROWS = st.lists(SMALL_ROW, min_size=1)


def load(rows: list[dict[str, Any]], **settings: Any) -> list[Prompt | BadRow]:
    return list(load_prompts(PromptSpec.model_validate({"source": {"kind": "inline", "rows": rows}, **settings})))


def load_file(path: Path, lines: list[str], **settings: Any) -> list[Prompt | BadRow]:
    path.write_text("\n".join(lines), encoding="utf-8")
    source = {"kind": "file", "path": str(path)}
    return list(load_prompts(PromptSpec.model_validate({"source": source, **settings})))


def prompt_of(item: Prompt | BadRow) -> Prompt:
    return item.prompt if isinstance(item, BadRow) else item


def test_a_prompt_is_named_by_its_content():
    (first,) = load([{"prompt": "p", "target": 1, "id": "x"}])
    (same,) = load([{"id": "y", "target": "1", "messages": [{"content": "p", "role": "user"}]}])
    (other,) = load([{"prompt": "p", "target": 2}])
    assert first.prompt_id == digest_json({"messages": first.messages, "target": "1"})
    assert first.prompt_id == same.prompt_id != other.prompt_id
    assert (first.source_id, same.source_id) == ("x", "y")


@given(SMALL_ROWS)
def test_occurrences_number_the_duplicates(rows):
    seen: Counter[str] = Counter()
    for item in load(rows):
        prompt = prompt_of(item)
        assert prompt.occurrence == seen[prompt.prompt_id]
        seen[prompt.prompt_id] += 1
    assert len(seen) == len({(row["prompt"], row["target"]) for row in rows})


@given(SMALL_ROWS, st.none() | st.integers(1, 20), st.integers())
def test_a_shuffle_is_a_permutation_and_a_limit_its_beginning(rows, limit, seed):
    everything = [number for number, _ in select_rows(rows, None, seed)]
    assert sorted(everything) == list(range(len(rows)))
    chosen = list(select_rows(rows, limit, seed))
    assert [number for number, _ in chosen] == everything[:limit]
    assert all(rows[number] is row for number, row in chosen)


def test_seeds_give_different_orders_and_rows_keep_theirs():
    order = [number for number, _ in select_rows(range(1000), None, 1)]
    assert order != [number for number, _ in select_rows(range(1000), None, 2)]
    assert order != sorted(order)
    longer = [number for number, _ in select_rows(range(2000), None, 1) if number < 1000]
    assert longer == order


def test_source_rows_are_positions_before_the_shuffle():
    rows = [{"prompt": str(number)} for number in range(50)]
    items = [prompt_of(item) for item in load(rows, shuffle_seed=3, limit=20)]
    assert len(items) == 20
    assert all(prompt.messages[0]["content"] == str(prompt.source_row) for prompt in items)
    assert [prompt.source_row for prompt in items] != sorted(prompt.source_row for prompt in items)


def test_a_bad_row_is_one_row():
    rows: list[dict[str, Any]] = [{"prompt": str(number), "id": number} for number in range(5)]
    rows[2] = {"id": "bad", "prompt": None}
    rows[4] = {"id": b"worse"}
    items = load(rows, columns={"prompt": "prompt"})
    assert [type(item) for item in items] == [Prompt, Prompt, BadRow, Prompt, BadRow]
    bad, worse = items[2], items[4]
    assert (bad.kind, bad.message) == ("row_error", "The prompt is null, expected text.")
    assert bad.prompt == Prompt(
        prompt_id=digest_json({"bad_row": rows[2]}), occurrence=0, source_row=2, source_id="bad", messages=[]
    )
    assert (worse.prompt.source_row, worse.prompt.source_id) == (4, None)


@pytest.mark.parametrize(
    ("row", "kind", "source_id", "target"),
    [
        ({"question": None, "answer": 7, "id": 1}, "template_error", "1", "7"),
        ({"question": "q", "answer": "7", "id": b"x"}, "row_error", None, "7"),
        ({"question": "q", "answer": b"7", "id": 1}, "row_error", "1", None),
        ({"question": "q", "id": 1}, "row_error", "1", None),
    ],
)
def test_load_prompts_keeps_the_target_of_a_bad_row(row, kind, source_id, target):
    """Without it, a row that cannot be asked would be left out of accuracy, where an error scores 0."""
    rows = [{"question": "q", "answer": "a", "id": 0}, row]
    bad = load(rows, template="{{ question }}", columns={"target": "answer"})[1]
    assert isinstance(bad, BadRow) and bad.kind == kind
    assert (bad.prompt.source_id, bad.prompt.target) == (source_id, target)


def test_a_line_that_is_not_json_is_a_bad_row_with_an_id_of_its_own(tmp_path):
    lines = ['{"question": "a"}', "{broken", '{"question": "b"}', "{broken", "{other"]
    items = load_file(tmp_path / "rows.jsonl", lines, template="{{ question }}")
    assert [type(item) for item in items] == [Prompt, BadRow, Prompt, BadRow, BadRow]
    bad = [item for item in items if isinstance(item, BadRow)]
    assert {item.kind for item in bad} == {"unreadable_row"}
    assert "rows.jsonl, line 2: not JSON" in bad[0].message
    assert [(item.prompt.source_row, item.prompt.occurrence) for item in bad] == [(1, 0), (3, 1), (4, 0)]
    assert len({item.prompt.prompt_id for item in bad}) == 2


def test_the_first_row_that_can_be_read_is_the_one_that_is_checked(tmp_path):
    lines = ["{broken", '{"question": "a"}']
    assert len(load_file(tmp_path / "rows.jsonl", lines, template="{{ question }}")) == 2
    with pytest.raises(PromptError, match=r"The first row does not fit the spec.*'answer'"):
        load_file(tmp_path / "rows.jsonl", lines, columns={"target": "answer"})


def test_examples_are_not_taken_from_lines_that_cannot_be_read(tmp_path):
    lines = ["{broken", *(json.dumps({"prompt": word, "target": word}) for word in "abc")]
    items = load_file(tmp_path / "rows.jsonl", lines, few_shot={"count": 2})
    assert [len(prompt_of(item).messages) for item in items] == [0, 5, 5, 5]
    with pytest.raises(PromptError, match=r"there are 3.*line 1: not JSON"):
        load_file(tmp_path / "rows.jsonl", lines, few_shot={"count": 3})


def test_a_row_that_no_json_takes_is_a_bad_row():
    assert isinstance(load([{"prompt": "p"}, {"prompt": {1: 1, "a": object()}}])[1], BadRow)


def test_bad_rows_that_quote_what_is_not_unicode_can_be_stored():
    bad = load([{"prompt": "p", "q": ""}, {"prompt": "\ud800", "\udfff": ""}], template="{{ q }}")[1]
    assert isinstance(bad, BadRow) and bad.kind == "template_error"
    bad.message.encode()


def test_errors_of_the_run_come_before_iteration():
    with pytest.raises(PromptError, match="is not in the row"):
        load_prompts(
            PromptSpec.model_validate(
                {"source": {"kind": "inline", "rows": [{"prompt": "p"}]}, "columns": {"target": "answer"}}
            )
        )
    with pytest.raises(PromptError, match="does not exist"):
        load_prompts(PromptSpec.model_validate({"source": {"kind": "file", "path": "/no/such.jsonl"}}))


def test_the_first_row_is_checked_before_the_shuffle():
    rows = [{"prompt": "p"}] + [{"prompt": "p", "answer": "a"}] * 20
    with pytest.raises(PromptError, match="first row"):
        load(rows, columns={"target": "answer"}, shuffle_seed=1, limit=1)


class CountedRows:
    """A million rows, and how many of them were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, source: object) -> Iterator[dict[str, Any]]:
        for number in range(1_000_000):
            self.taken += 1
            yield {"prompt": f"prompt {number}"}


@pytest.fixture
def million(monkeypatch: pytest.MonkeyPatch) -> CountedRows:
    rows = CountedRows()
    monkeypatch.setattr(read, "read_rows", rows.read)
    return rows


SPEC = PromptSpec.model_validate({"source": {"kind": "inline", "rows": [{}]}})


def test_nothing_is_read_ahead(million):
    items = load_prompts(SPEC)
    assert million.taken == 1
    assert len(list(itertools.islice(items, 3))) == 3
    assert million.taken == 3


def test_a_limit_reads_no_further(million):
    assert len(list(load_prompts(SPEC.model_copy(update={"limit": 10})))) == 10
    assert million.taken <= 11


def test_a_shuffle_with_a_limit_holds_only_the_limit():
    rows = ({"prompt": "x" * 1000 + str(number)} for number in range(20_000))
    tracemalloc.start()
    try:
        assert len(list(select_rows(rows, 10, 1))) == 10
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
