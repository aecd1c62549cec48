"""Answers of a real vLLM engine: right texts, the ids that were sent, all requested fields."""

from itertools import pairwise
from typing import Any

import pytest
from engine_kit import ARGS, NO_PREEMPTIONS, Asker, CountedRequests, by_id, stamps_of
from run_kit import wait_for

from assayline.engines.client import OfflineEngine
from assayline.errors import EngineInterruptedError, SpecError
from assayline.records import Completion

pytestmark = pytest.mark.vllm

CONTEXT = ARGS["max_model_len"]


def answer_to(engine: OfflineEngine, asker: Asker, question: str = "What is 3 + 4?", **sampling: Any) -> Completion:
    [answer] = engine.generate([asker.ask(question, **sampling)])
    assert answer.error_kind is None, answer.error_message
    return answer


def test_the_model_adds_and_every_stamp_is_in_order(engine, asker):
    """Measured, on one clock, from the engine's arrival on; and row 13: count in = count out."""
    requests = [asker.ask(row["question"]) for row in asker.rows]
    answers = by_id(engine.generate(requests))
    assert sorted(answers) == sorted(request.request_id for request in requests)
    right = [answers[r.request_id].text == row["answer"] for r, row in zip(requests, asker.rows, strict=True)]
    assert sum(right) / len(right) > 0.9
    for answer in answers.values():
        assert answer.finish_reason == "stop"
        assert all(before <= after for before, after in pairwise(stamps_of(answer)))
        assert min(stamps_of(answer)) > 0
        assert answer.first_token_at_s > answer.scheduled_at_s  # type: ignore[operator]
        assert (answer.output_tokens or 0) == len(answer.output_token_ids or []) > 1
        assert answer.last_token_at_s > answer.first_token_at_s  # type: ignore[operator]
        assert (answer.preemptions, answer.token_at_s, answer.due_at_s) == (NO_PREEMPTIONS, None, None)
        assert (answer.window_requests, answer.worker, answer.engine_generation) == (10, "worker-0", 0)


def test_the_engine_receives_the_ids_that_were_sent(engine, asker):
    """No second BOS, no second tokenization."""
    request = asker.ask(prompt_logprobs=0)
    assert request.prompt_token_ids.count(asker.tokenizer.bos_token_id) == 1
    assert request.prompt_token_ids[0] == asker.tokenizer.bos_token_id
    [answer] = engine.generate([request])
    received = [next(iter(position)) if position else None for position in answer.prompt_logprobs]
    assert received == [None, *(str(token) for token in request.prompt_token_ids[1:])]
    assert answer.prompt_tokens == len(request.prompt_token_ids)


def test_a_stop_string_ends_the_answer_and_is_named(engine, asker):
    answer = answer_to(engine, asker, "What is 9 + 4?", stop=["3"])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("1", "stop", "3")
    kept = answer_to(engine, asker, "What is 9 + 4?", stop=["3"], include_stop_str_in_output=True)
    assert kept.text == "13"


def test_a_stop_token_is_named_too(engine, asker):
    one = asker.token("1")
    answer = answer_to(engine, asker, "What is 9 + 4?", stop_token_ids=[one])
    assert (answer.finish_reason, answer.stop_reason, answer.output_token_ids) == ("stop", str(one), [one])


def test_max_tokens_unset_is_the_room_left_in_the_context(engine, asker):
    """Not vLLM's 16."""
    answer = answer_to(engine, asker, max_tokens=None, ignore_eos=True)
    assert answer.prompt_tokens is not None
    assert (answer.output_tokens, answer.finish_reason) == (CONTEXT - answer.prompt_tokens, "length")


def test_one_token_has_a_first_and_a_last_stamp_which_are_the_same(engine, asker):
    answer = answer_to(engine, asker, max_tokens=1)
    assert answer.output_tokens == 1 and answer.finish_reason == "length"
    assert answer.first_token_at_s == answer.last_token_at_s is not None


def test_a_bad_request_among_many_is_one_error_row(engine, asker):
    """One over-long prompt among 128 gave them 32 errors."""
    bad = {
        "rejected_by_engine": [
            asker.send([asker.token("1")] * (CONTEXT + 50)),
            asker.send([asker.token("1")] * CONTEXT),
            asker.send([]),
            asker.send([10**6]),
            asker.ask(structured_outputs={"json": "{not json"}),
            asker.ask(logprobs=10**4),
        ],
        "sampling_error": [
            asker.ask(temperature=5),
            asker.ask(no_such_argument=1),
            asker.ask(structured_outputs={"x": 1}),
        ],
    }
    good = [asker.ask(row["question"]) for row in asker.rows[:40]]
    mixed = list(good)
    for position, request in enumerate(request for requests in bad.values() for request in requests):
        mixed.insert(4 * position + 1, request)
    answers = by_id(engine.generate(mixed))
    assert len(answers) == len(mixed)
    kinds = {request.request_id: kind for kind, requests in bad.items() for request in requests}
    assert {id: answer.error_kind for id, answer in answers.items() if answer.error_kind} == kinds
    for id in kinds:
        row = answers[id]
        assert row.error_message and row.finished_at_s and row.arrived_at_s
        assert row.text is row.output_tokens is row.finish_reason is row.first_token_at_s is row.queued_at_s is None
    right = sum(answers[r.request_id].text == row["answer"] for r, row in zip(good, asker.rows, strict=False))
    assert right >= 36


def test_the_window_is_filled_but_never_exceeded_and_input_is_read_as_needed(engine, asker):
    counted = CountedRequests(asker.ask(row["question"]) for row in asker.rows[:60])
    answers = counted.answers(engine)
    assert counted.given == 0
    for seen, _ in enumerate(answers):
        assert counted.given <= seen + engine.facts.window_requests
    assert counted.most == engine.facts.window_requests == 10
    assert counted.given == counted.answered == 60


def test_a_long_answer_does_not_hold_up_the_short_ones(engine, asker):
    """Their barrier waits for the slowest of each batch of ten; a window does not.

    What arrives in the first half of the long answer ends before it. Where this process was held up for so long that
    hardly anything arrived then, nothing can be said, and it is tried again.
    """

    def arrive_beside_it() -> bool:
        slow = asker.ask(max_tokens=400, ignore_eos=True)
        answers = list(engine.generate([slow, *[asker.ask() for _ in range(30)]]))
        ids = [answer.request_id for answer in answers]
        assert len(ids) == len(set(ids)) == 31
        long = answers[ids.index(slow.request_id)]
        half_s = (long.first_token_at_s + long.last_token_at_s) / 2
        early = [answer.request_id for answer in answers if answer.arrived_at_s < half_s and answer is not long]
        assert set(early) <= set(ids[: ids.index(slow.request_id)])
        return len(early) >= 10

    wait_for(arrive_beside_it, "more short ones beside the long one than the nine of a barrier of ten")


def test_none_is_nothing_for_now(engine, asker):
    requests = [asker.ask(row["question"]) for row in asker.rows[:6]]
    mixed = [None, None, requests[0], None, *requests[1:4], None, None, None, *requests[4:], None]
    answers = by_id(engine.generate(mixed))
    assert sorted(answers) == sorted(request.request_id for request in requests)


def test_log_probabilities_come_back(engine, asker):
    """Finish reason, ids and log-probabilities are kept."""
    answer = answer_to(engine, asker, "What is 9 + 4?", logprobs=3, prompt_logprobs=2)
    ids = answer.output_token_ids
    assert ids is not None and asker.tokenizer.decode(ids, skip_special_tokens=True) == answer.text == "13"
    assert len(answer.logprobs) == len(ids) == answer.output_tokens
    chosen = [position[str(token)] for position, token in zip(answer.logprobs, ids, strict=True)]
    assert all(len(position) >= 3 for position in answer.logprobs) and all(value <= 0 for value in chosen)
    assert answer.cumulative_logprob == pytest.approx(sum(chosen), abs=1e-4)
    assert len(answer.prompt_logprobs) == answer.prompt_tokens and answer.prompt_logprobs[0] is None
    assert all(len(position) >= 2 for position in answer.prompt_logprobs[1:])


def test_fields_not_requested_are_none(engine, asker):
    """Not 0.0 and not an empty list."""
    answer = answer_to(engine, asker)
    assert answer.logprobs is answer.prompt_logprobs is answer.cumulative_logprob is answer.token_at_s is None


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"logit_bias": {"{5}": 100}, "max_tokens": 3}, "555"),
        ({"allowed_token_ids": ["{6}"], "max_tokens": 3}, "666"),
        ({"structured_outputs": {"choice": ["42", "24"]}}, ("42", "24")),
        ({"structured_outputs": {"regex": "[ab]{2}"}}, ("aa", "ab", "ba", "bb")),
        ({"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 2}, "7<|end|>"),
        ({"detokenize": False}, ""),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sampling_reaches_the_sampler(engine, asker, sampling, expected):
    """Everything reaches it, not max_tokens and ignore_eos alone."""

    def tokens_in(value: Any) -> Any:
        if isinstance(value, str) and len(value) == 3 and value[0] + value[2] == "{}":
            return asker.token(value[1])
        if isinstance(value, list):
            return [tokens_in(item) for item in value]
        return {tokens_in(key): item for key, item in value.items()} if isinstance(value, dict) else value

    answer = answer_to(engine, asker, **{name: tokens_in(value) for name, value in sampling.items()})
    assert answer.text in expected if isinstance(expected, tuple) else answer.text == expected


def test_bad_words_and_minimal_lengths_reach_the_sampler(engine, asker):
    assert "7" in (answer_to(engine, asker).text or "")
    assert "7" not in (answer_to(engine, asker, bad_words=["7"]).text or "")
    assert (answer_to(engine, asker, min_tokens=9).output_tokens or 0) >= 9


def test_seeds_reach_the_sampler(engine, asker):
    draw = {"temperature": 2.0, "max_tokens": 12, "ignore_eos": True}
    texts = [answer_to(engine, asker, **draw, seed=seed).text for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1] and len(set(texts)) == 3


def test_a_repeated_prompt_is_served_from_the_prefix_cache(engine, asker):
    block = engine.facts.details["block_size_tokens"]
    prompt = asker.fresh_prompt(block + 20)
    first, second = [next(iter(engine.generate([asker.send(prompt, max_tokens=2)]))) for _ in range(2)]
    assert (first.cached_tokens, second.cached_tokens) == (0, block)


def test_warm_up_primes_the_prefix_and_counts_nowhere(engine, asker, control):
    block = engine.facts.details["block_size_tokens"]
    prefix = asker.fresh_prompt(block + 5)
    list(engine.generate([asker.ask()]))
    assert engine.warm_up(asker.send(prefix, max_tokens=4)) > 0
    control.samples.clear()
    assert list(engine.generate(iter_none_until(lambda: len(control.samples) >= 2))) == []
    assert {(sample.engine_steps, sample.output_tokens) for sample in control.samples[1:]} == {(0, 0)}
    [answer] = engine.generate([asker.send([*prefix, asker.token("1")], max_tokens=3, ignore_eos=True)])
    assert answer.cached_tokens == block
    control.samples.clear()
    list(engine.generate(iter_none_until(lambda: len(control.samples) >= 2)))
    assert (control.samples[-1].engine_steps, control.samples[-1].output_tokens) == (3, 3)


def iter_none_until(done: Any) -> Any:
    while not done():
        yield None


def test_a_refused_warm_up_is_said_and_leaves_the_engine_usable(engine, asker):
    with pytest.raises(SpecError, match=r"warm-up request was refused: .*temperature"):
        engine.warm_up(asker.ask(temperature=9))
    assert answer_to(engine, asker).text == "7"


@pytest.mark.parametrize("seen", [0, 1, 7])
def test_an_iterator_left_early_aborts_and_leaves_the_engine_usable(engine, asker, seen):
    left = [asker.ask(max_tokens=3 + 20 * number, ignore_eos=True) for number in range(9)]
    answers = engine.generate(left)
    for _ in range(seen):
        next(answers)
    answers.close()  # type: ignore[attr-defined]
    again = [asker.ask(row["question"]) for row in asker.rows[:20]]
    found = by_id(engine.generate(again))
    assert sorted(found) == sorted(request.request_id for request in again)
    assert sum(found[r.request_id].text == row["answer"] for r, row in zip(again, asker.rows, strict=False)) >= 18


def test_an_aborted_request_is_no_longer_in_flight(engine, asker, control):
    answers = engine.generate(asker.ask(max_tokens=None, ignore_eos=True) for _ in range(20))
    while not control.samples:
        next(answers)
    answers.close()  # type: ignore[attr-defined]
    control.samples.clear()
    list(engine.generate(iter_none_until(lambda: len(control.samples) >= 2)))
    assert control.samples[-1].in_flight_requests == 0
    steps = {sample.engine_steps for sample in control.samples[-1:]}
    list(engine.generate(iter_none_until(lambda: len(control.samples) >= 3)))
    assert {control.samples[-1].engine_steps} == steps, "nothing is left to make steps for"


def test_an_exception_of_the_consumer_or_the_input_leaves_the_engine_usable(engine, asker):
    def ask(count: int) -> Any:
        yield from (asker.ask(max_tokens=50, ignore_eos=True) for _ in range(count))
        raise KeyError

    for count in (20, 1):
        with pytest.raises(KeyError):
            for _ in engine.generate(ask(count)):
                if count == 20:
                    raise KeyError
        assert answer_to(engine, asker).text == "7"


def test_a_stop_comes_at_once_after_what_had_finished(engine, asker, control):
    """Finished rows are kept, and the engine is left clean."""
    seen: list[Completion] = []
    with pytest.raises(EngineInterruptedError, match="stopped on request; what had finished"):
        for answer in engine.generate(asker.ask(max_tokens=5 + 30 * n, ignore_eos=True) for n in range(8)):
            seen.append(answer)
            control.stop = True
    assert seen and len(seen) < 8 and seen[0].output_tokens == 5
    control.stop = False
    assert answer_to(engine, asker).text == "7"


def test_engine_reports_its_details(engine):
    facts = engine.facts
    assert (facts.window_requests, facts.max_model_len) == (10, CONTEXT)
    assert facts.load_s > 0
    assert facts.details["vllm_version"] and facts.details["device"] == "cpu"
    assert facts.details["max_num_seqs"] == 8 and facts.details["dtype"] == "float32"
