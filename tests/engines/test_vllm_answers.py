"""Answers of vLLM's offline engine: right texts, the ids that were sent, all requested fields; its window, its stops.

Answers of other engines are compared with these in test_vllm_engines.py.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_kit import (
    ARGS,
    NO_PREEMPTIONS,
    VLLM,
    Asker,
    CountedRequests,
    answer_to,
    answers_in,
    by_id,
    is_rising,
    prepare_options,
    stamps_of,
)
from run_kit import wait_for

from assayline.errors import EngineInterruptedError, SpecError
from assayline.records import Completion
from assayline.requests.build import PreparedPrompt

pytestmark = pytest.mark.vllm

CONTEXT = ARGS["max_model_len"]
UNENDED = {"ignore_eos": True}


def nothing_until(done: Callable[[], bool]) -> Iterator[None]:
    while not done():
        yield None


def test_the_model_adds_and_every_stamp_is_in_order(engine, asker):
    """Measured, on one clock, from the engine's arrival on; and count in = count out."""
    requests = [asker.ask(row["question"]) for row in asker.rows]
    answers = by_id(engine.generate(requests))
    assert sorted(answers) == sorted(request.request_id for request in requests)
    right = [answers[r.request_id].text == row["answer"] for r, row in zip(requests, asker.rows, strict=True)]
    assert sum(right) / len(right) > 0.9
    for answer in answers.values():
        assert answer.finish_reason == "stop"
        assert None not in stamps_of(answer) and is_rising(stamps_of(answer)) and min(stamps_of(answer)) > 0
        assert answer.last_token_at_s > answer.first_token_at_s > answer.scheduled_at_s
        assert (answer.output_tokens or 0) == len(answer.output_token_ids or []) > 1
        assert (answer.preemptions, answer.due_at_s) == (NO_PREEMPTIONS, None)
        assert (answer.window_requests, answer.worker, answer.engine_generation) == (10, "worker-0", 0)
        assert answer.logprobs is answer.prompt_logprobs is answer.cumulative_logprob is answer.token_at_s is None


def test_the_engine_receives_the_ids_that_were_sent(engine, asker):
    """No second BOS, no second tokenization."""
    request = asker.ask(prompt_logprobs=0)
    assert request.prompt_token_ids.count(asker.tokenizer.bos_token_id) == 1
    assert request.prompt_token_ids[0] == asker.tokenizer.bos_token_id
    [answer] = engine.generate([request])
    received = [next(iter(position)) if position else None for position in answer.prompt_logprobs]
    assert received == [None, *(str(token) for token in request.prompt_token_ids[1:])]
    assert answer.prompt_tokens == len(request.prompt_token_ids)


def test_the_end_of_an_answer_is_named(engine, asker):
    answer = answer_to(engine, asker, "What is 9 + 4?", stop=["3"])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("1", "stop", "3")
    assert answer_to(engine, asker, "What is 9 + 4?", stop=["3"], include_stop_str_in_output=True).text == "13"
    one = asker.token("1")
    answer = answer_to(engine, asker, "What is 9 + 4?", stop_token_ids=[one])
    assert (answer.finish_reason, answer.stop_reason, answer.output_token_ids) == ("stop", str(one), [one])
    answer = answer_to(engine, asker, max_tokens=None, **UNENDED)
    assert answer.finish_reason == "length"
    assert answer.output_tokens == CONTEXT - answer.prompt_tokens, "the room left in the context, not vLLM's 16"
    answer = answer_to(engine, asker, max_tokens=1)
    assert (answer.output_tokens, answer.finish_reason) == (1, "length")
    assert answer.first_token_at_s == answer.last_token_at_s is not None


def test_log_probabilities_come_back(engine, asker):
    answer = answer_to(engine, asker, "What is 9 + 4?", logprobs=3, prompt_logprobs=2)
    ids = answer.output_token_ids
    assert ids is not None and asker.tokenizer.decode(ids, skip_special_tokens=True) == answer.text == "13"
    assert len(answer.logprobs) == len(ids) == answer.output_tokens
    chosen = [position[str(token)] for position, token in zip(answer.logprobs, ids, strict=True)]
    assert all(len(position) >= 3 for position in answer.logprobs) and all(value <= 0 for value in chosen)
    assert answer.cumulative_logprob == pytest.approx(sum(chosen), abs=1e-4)
    assert len(answer.prompt_logprobs) == answer.prompt_tokens and answer.prompt_logprobs[0] is None
    assert all(len(position) >= 2 for position in answer.prompt_logprobs[1:])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"logit_bias": {"{5}": 100}, "max_tokens": 3}, ("555",)),
        ({"allowed_token_ids": ["{6}"], "max_tokens": 3}, ("666",)),
        ({"structured_outputs": {"choice": ["42", "24"]}}, ("42", "24")),
        ({"structured_outputs": {"regex": "[ab]{2}"}}, ("aa", "ab", "ba", "bb")),
        ({"skip_special_tokens": False, "max_tokens": 2, **UNENDED}, ("7<|end|>",)),
        ({"detokenize": False}, ("",)),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sampling_reaches_the_sampler(engine, asker, sampling, expected):
    def tokens_in(value: Any) -> Any:
        if isinstance(value, str) and len(value) == 3 and value[0] + value[2] == "{}":
            return asker.token(value[1])
        if isinstance(value, list):
            return [tokens_in(item) for item in value]
        return {tokens_in(key): item for key, item in value.items()} if isinstance(value, dict) else value

    assert answer_to(engine, asker, **{name: tokens_in(value) for name, value in sampling.items()}).text in expected


def test_bad_words_minimal_lengths_and_seeds_reach_the_sampler(engine, asker):
    assert "7" in (answer_to(engine, asker).text or "")
    assert "7" not in (answer_to(engine, asker, bad_words=["7"]).text or "")
    assert (answer_to(engine, asker, min_tokens=9).output_tokens or 0) >= 9
    draw = {"temperature": 2.0, "max_tokens": 12, **UNENDED}
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
    assert list(engine.generate(nothing_until(lambda: len(control.samples) >= 2))) == []
    assert {(sample.engine_steps, sample.output_tokens) for sample in control.samples[1:]} == {(0, 0)}
    [answer] = engine.generate([asker.send([*prefix, asker.token("1")], max_tokens=3, **UNENDED)])
    assert answer.cached_tokens == block
    control.samples.clear()
    list(engine.generate(nothing_until(lambda: len(control.samples) >= 2)))
    assert (control.samples[-1].engine_steps, control.samples[-1].output_tokens) == (3, 3)
    with pytest.raises(SpecError, match=r"warm-up request was refused: .*temperature"):
        engine.warm_up(asker.ask(temperature=9))
    assert answer_to(engine, asker).text == "7"


def test_the_window_is_filled_but_never_exceeded_and_input_is_read_as_needed(engine, asker):
    requests = [asker.ask(row["question"]) for row in asker.rows[:60]]
    mixed = [None, None, requests[0], None, *requests[1:4], None, None, None, *requests[4:], None]
    counted = CountedRequests(mixed)
    answers = counted.answers(engine)
    assert counted.given == 0
    for seen, _ in enumerate(answers):
        assert counted.given <= seen + engine.facts.window_requests
    assert counted.most == engine.facts.window_requests == 10
    assert counted.given == counted.answered == 60


def test_a_long_answer_does_not_hold_up_the_short_ones(engine, asker):
    """Answers to requests that arrive in the first half of the long one end before it.

    Where this process was held up for so long that hardly anything arrived then, it is tried again.
    """

    def arrive_beside_it() -> bool:
        slow = asker.ask(max_tokens=400, **UNENDED)
        answers = list(engine.generate([slow, *[asker.ask() for _ in range(30)]]))
        ids = [answer.request_id for answer in answers]
        assert len(ids) == len(set(ids)) == 31
        long = answers[ids.index(slow.request_id)]
        half_s = (long.first_token_at_s + long.last_token_at_s) / 2
        early = [answer.request_id for answer in answers if answer.arrived_at_s < half_s and answer is not long]
        assert set(early) <= set(ids[: ids.index(slow.request_id)])
        return len(early) >= 10

    wait_for(arrive_beside_it, "more short ones beside the long one than the nine of a barrier of ten")


def test_an_aborted_request_is_no_longer_in_flight(engine, asker, control):
    answers = engine.generate(asker.ask(max_tokens=None, **UNENDED) for _ in range(20))
    while not control.samples:
        next(answers)
    answers.close()
    control.samples.clear()
    list(engine.generate(nothing_until(lambda: len(control.samples) >= 2)))
    assert control.samples[-1].in_flight_requests == 0
    steps = control.samples[-1].engine_steps
    list(engine.generate(nothing_until(lambda: len(control.samples) >= 3)))
    assert control.samples[-1].engine_steps == steps, "nothing is left to make steps for"


def test_an_exception_of_the_consumer_or_the_input_leaves_the_engine_usable(engine, asker):
    def ask(count: int) -> Any:
        yield from (asker.ask(max_tokens=50, **UNENDED) for _ in range(count))
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
        for answer in engine.generate(asker.ask(max_tokens=5 + 30 * n, **UNENDED) for n in range(8)):
            seen.append(answer)
            control.stop = True
    assert seen and len(seen) < 8 and seen[0].output_tokens == 5
    control.stop = False
    assert answer_to(engine, asker).text == "7"


@pytest.fixture(scope="module")
def arithmetic(asker: Asker) -> list[PreparedPrompt]:
    """Sums with four answers of one or two tokens each, the right one among them."""
    rows = []
    for row in asker.rows[:40]:
        right = int(row["answer"])
        options = sorted({right, (right + 3) % 19, (right + 7) % 19, (right + 11) % 19})
        rows.append({"prompt": row["question"], "target": right, "choices": options})
    return prepare_options(asker, rows)


def test_sums_of_options_are_those_of_another_implementation(engine, arithmetic, reference):
    requests = [request for prompt in arithmetic for request in prompt.ready]
    assert {request.option_tokens for request in requests} == {1, 2}
    answers = by_id(engine.generate(requests))
    for request in requests:
        answer = answers[request.request_id]
        assert answer.error_kind is None, answer.error_message
        assert answer.option_logprob == pytest.approx(reference.option_logprob(request), abs=2e-3, rel=1e-3)
        assert answer.text is answer.prompt_logprobs is answer.output_token_ids is answer.logprobs is None
        assert answer.output_tokens == 1 and answer.finish_reason in ("length", "stop")
        assert answer.prompt_tokens == len(request.prompt_token_ids)
        assert answer.first_token_at_s and answer.finished_at_s
    right = 0
    for prompt in arithmetic:
        best = max(prompt.ready, key=lambda request: answers[request.request_id].option_logprob or -math.inf)
        right += best.option == prompt.prompt.target
    assert right / len(arithmetic) > 0.9


SUM_GRAMMAR = """
root ::= term (" + " term)? " = " number
term ::= number | "(" number ")"
number ::= digit | digit digit
digit ::= [0-9]
"""


LARK_GRAMMAR = """
start: "yes" | "no" NUMBER
NUMBER: /[0-9]/
"""


EXPRESSION, CHOICE = r"[A-F]{2}-[0-9]{1,3}(, (odd|even))?", ["yes", "no", "perhaps 7", 'A "quoted" one']


TERM = r"([0-9]{1,2}|\([0-9]{1,2}\))"


needs_terminals = pytest.mark.skipif(VLLM < (0, 31), reason="before vLLM 0.31 a grammar with terminals goes wrong")


@pytest.mark.parametrize(
    ("form", "pattern", "least"),
    [
        ({"regex": EXPRESSION}, EXPRESSION, 4),
        ({"choice": CHOICE}, "|".join(map(re.escape, CHOICE)), 2),
        ({"grammar": SUM_GRAMMAR}, rf"{TERM}( \+ {TERM})? = [0-9]{{1,2}}", 4),
        pytest.param({"grammar": LARK_GRAMMAR}, "yes|no[0-9]", 1, marks=needs_terminals),
    ],
    ids=["an expression", "choices", "a grammar", "a grammar of lark"],
)
def test_every_answer_has_its_form(engine, asker, form, pattern, least):
    texts = [str(answer.text) for answer in answers_in(engine, asker, form)]
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(set(texts)) >= least
