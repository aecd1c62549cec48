"""The order of requests: by the lengths that earlier runs of the model gave, and never at the cost of a row."""

import dataclasses
import random
from typing import Any

import pytest
from run_kit import complete, completion_of, query, request_of, rows_of, vanish, work

from assayline.errors import StoreError
from assayline.records import Prompt
from assayline.requests.build import PreparedPrompt
from assayline.run import begin
from assayline.run.begin import begin_evaluation
from assayline.run.order import (
    LENGTHS_NAME,
    name_shard,
    read_lengths,
    sort_rows,
)
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.parts import list_part_names

PROMPTS = 40
SHARD = 8
LENGTHS = random.Random(7).sample(range(10, 10 + 3 * PROMPTS), PROMPTS)


@pytest.fixture
def spec_of(make_spec: Any) -> Any:
    """A spec of forty prompts; with `lengths` each row says how long its answer is, without nothing does."""

    def make(lengths: list[int] | None = None, rows: int = PROMPTS, **changes: Any) -> EvalSpec:
        given = [{"question": f"What is {number}?"} for number in range(rows)]
        if lengths:
            given = [{**row, "sampling": {"max_tokens": n}} for row, n in zip(given, lengths, strict=False)]
        prompts = {
            "source": {"kind": "inline", "rows": given},
            "columns": {"sampling": "sampling"} if lengths else {},
            "name": "forty",
        }
        engine = {"backend": "fake", "max_concurrency": 1, **changes.pop("engine", {})}
        changes = {"sampling": {"max_tokens": None}, **changes}
        return make_spec(prompts=prompts, engine=engine, shard_requests=SHARD, **changes)  # type: ignore[no-any-return]

    return make


def asked_in_order(settings: Settings, run_id: str) -> list[int]:
    """Numbers of the prompts, as they reached the engine."""
    rows = query(
        settings,
        "select source_row from completions join requests using (run_id, request_id) "
        f"join prompts using (run_id, prompt_id, occurrence) where run_id = '{run_id}' order by sent_at_s",
    )
    return [number for (number,) in rows]


LONGEST_FIRST = sorted(range(PROMPTS), key=lambda number: -LENGTHS[number])


def test_a_second_run_begins_with_what_was_long_in_the_first(spec_of, settings):
    first = complete(spec_of(LENGTHS, engine={"order": "given"}), settings)
    assert asked_in_order(settings, first.run_id) == list(range(PROMPTS))
    second = complete(spec_of(), settings)
    assert asked_in_order(settings, second.run_id) == LONGEST_FIRST
    expected = query(
        settings,
        "select source_row, expected_output_tokens from requests join prompts using (run_id, prompt_id, occurrence) "
        f"where run_id = '{second.run_id}' order by all",
    )
    assert expected == list(enumerate(LENGTHS))
    unordered = query(settings, f"select distinct expected_output_tokens from requests where run_id = '{first.run_id}'")
    assert unordered == [(None,)]
    texts = "select prompt_id, text from completions join requests using (run_id, request_id) where run_id = '{}'"
    assert sorted(query(settings, texts.format(first.run_id))) == sorted(query(settings, texts.format(second.run_id)))
    [(forecasts,)] = query(
        settings, f"select count(expected_output_tokens) from requests where run_id = '{second.run_id}'"
    )
    assert forecasts == PROMPTS


def test_limits_of_rows_order_a_first_run(spec_of, settings):
    result = complete(spec_of(LENGTHS), settings)
    assert asked_in_order(settings, result.run_id) == LONGEST_FIRST


def test_without_knowledge_the_order_is_the_one_given(spec_of, settings):
    evaluation = begin_evaluation(spec_of(), settings)
    evaluation.prepare()
    assert not (evaluation.run_dir / LENGTHS_NAME).exists()
    names = [f"{name_shard(number)}.parquet" for number in range(PROMPTS // SHARD)]
    assert list_part_names(evaluation.run_dir, "requests") == names
    assert [row["source_row"] for row in rows_of(evaluation.run_dir, "prompts")] == list(range(PROMPTS))
    vanish(evaluation)


def test_order_starts_unknown_lengths_first_and_caps_expected_lengths(spec_of, settings):
    complete(spec_of(LENGTHS[:30], rows=30, engine={"order": "given"}), settings)
    result = complete(spec_of(sampling={"max_tokens": 50}), settings)
    order = asked_in_order(settings, result.run_id)
    assert order[:10] != list(range(30, 40)), "a limit of 50 is no more than what is known to be as long"
    assert order == sorted(range(PROMPTS), key=lambda number: -min(LENGTHS[number] if number < 30 else 50, 50))


def test_a_run_keeps_the_order_that_it_began_with(spec_of, settings):
    """Killed while it prepares; another run ends before it is resumed, and expects otherwise."""
    complete(spec_of(LENGTHS, engine={"order": "given"}), settings)
    evaluation = begin_evaluation(spec_of(), settings)
    begun = read_lengths(evaluation.run_dir)
    evaluation.prepare()
    names = list_part_names(evaluation.run_dir, "requests")
    evaluation.change(prompts=None)  # as if it had not come to the end
    for name in names[3:]:
        (evaluation.run_dir / "parts" / "requests" / name).unlink()
    vanish(evaluation)
    complete(spec_of(LENGTHS[::-1], engine={"order": "given"}), settings, "never")
    again = begin_evaluation(spec_of(), settings, evaluation.run_id)
    counts = again.prepare()
    assert list_part_names(again.run_dir, "requests") == names and counts.expected_requests == PROMPTS
    assert [begun[row["prompt_id"]] for row in rows_of(again.run_dir, "prompts")] == sorted(LENGTHS, reverse=True)
    work(again)
    again.finish(counts)


def test_an_earlier_answer_that_cannot_be_read_costs_a_note(spec_of, settings, monkeypatch):
    def fail(*_: Any) -> None:
        raise StoreError("The database is gone.")

    monkeypatch.setattr(begin, "recall_lengths", fail)
    evaluation = begin_evaluation(spec_of(), settings)
    assert [note for note in evaluation.notes if "order given" in note and "is gone" in note]
    work_through = evaluation.prepare()
    work(evaluation)
    assert evaluation.finish(work_through).answered_requests == PROMPTS


def test_a_damaged_file_of_lengths_says_so(spec_of, settings):
    evaluation = begin_evaluation(spec_of(), settings)
    (evaluation.run_dir / LENGTHS_NAME).write_bytes(b"no parquet")
    with pytest.raises(StoreError, match=rf"{LENGTHS_NAME}, the expected lengths that order.*--fresh"):
        evaluation.prepare()
    evaluation.abandon("failed", "as tested")


def test_a_stop_in_the_middle_of_a_horizon_leaves_the_queue_open(spec_of, settings):
    evaluation = begin_evaluation(spec_of(LENGTHS), settings)
    evaluation.stop()
    counts = evaluation.prepare()
    assert not counts.is_complete and not evaluation.dispatcher.is_over
    assert evaluation.manifest.prompts is None
    vanish(evaluation)


@pytest.mark.parametrize("limit", [5, -5, 0, "many", None, True, 2**40, 1.5])
def test_a_row_may_say_anything_of_its_limit(spec_of, settings, limit):
    spec = spec_of([limit, 12])
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    assert counts.prompt_rows == 2 and evaluation.is_answered is False
    vanish(evaluation)


@pytest.mark.parametrize(
    ("load", "keeps_order"),
    [
        ({"arrival": {"kind": "poisson", "rate_per_s": 5}}, True),
        ({"arrival": {"kind": "all_at_once"}}, True),
        ({"arrival": {"kind": "concurrency", "requests": 2}, "max_requests": 3}, True),
        ({"arrival": {"kind": "concurrency", "requests": 2}}, False),
    ],
    ids=["open loop", "all at once", "only some", "closed loop"],
)
def test_a_load_that_would_measure_other_requests_keeps_the_order(spec_of, load, keeps_order):
    changes = {"load": load, "engine": {"backend": "async", "max_concurrency": None}}
    assert spec_of(**changes).is_longest_first is not keeps_order


def row_of(number: int, tokens: list[int], expected: int) -> PreparedPrompt:
    request = dataclasses.replace(request_of(number, tokens), expected_output_tokens=expected)
    return PreparedPrompt(
        Prompt(prompt_id=request.prompt_id, occurrence=0, source_row=number, source_id=None, messages=[]), [request]
    )


def test_a_row_with_an_error_has_no_place_of_its_own():
    bad = row_of(0, [], 9)
    bad = dataclasses.replace(bad, errors=[completion_of(bad.requests[0].request_id, error_kind="any")])
    assert sort_rows([bad, row_of(1, [1], 3)])[0].prompt.source_row == 1
