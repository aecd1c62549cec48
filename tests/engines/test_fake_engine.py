"""The engine contract of `engines/base.py`, on the engine without a model."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from engine_kit import CountedRequests
from run_kit import order_of, request_of

from assayline.engines.base import EngineHooks
from assayline.engines.fake import FakeEngine
from assayline.errors import EngineInterruptedError


def fake(**options: Any) -> FakeEngine:
    return FakeEngine(order_of(), **options)


@pytest.mark.parametrize("window", [1, 3, 8, 100])
def test_the_window_is_filled_and_never_exceeded(window):
    source = CountedRequests([request_of(number, max_tokens=number % 7 + 1) for number in range(60)])
    answers = list(source.answers(fake(window=window, max_num_seqs=4)))
    assert sorted(answer.request_id for answer in answers) == [request_of(number).request_id for number in range(60)]
    assert source.most == min(window, 60)
    assert {answer.window_requests for answer in answers} == {window}


def test_while_there_is_nothing_to_send_the_engine_goes_on_with_what_it_has():
    answers = fake(window=8).generate(itertools.chain([request_of(0, max_tokens=5)], itertools.repeat(None)))
    assert next(answers).request_id == "request-00000"


def test_a_failed_request_is_one_error_row_among_results():
    failing = frozenset({request_of(3).request_id})
    answers = {row.request_id: row for row in fake(fail_ids=failing).generate([request_of(n) for n in range(128)])}
    assert len(answers) == 128
    assert {id for id, row in answers.items() if row.error_kind} == failing
    [bad] = [row for row in answers.values() if row.error_kind]
    assert bad.text is bad.output_tokens is bad.first_token_at_s is bad.finish_reason is None


def test_a_stop_is_an_exception_after_what_had_finished():
    seen: list[str] = []
    engine = fake(window=4, hooks=EngineHooks(should_stop=lambda: len(seen) >= 3))
    with pytest.raises(EngineInterruptedError, match="stopped on request"):
        for answer in engine.generate(request_of(number, max_tokens=number + 1) for number in range(100)):
            seen.append(answer.request_id)
    assert len(seen) == 3


def test_likelihoods_of_options_are_negative_and_differ():
    requests = [replace(request_of(n, [1, n]), option="7", option_tokens=1) for n in range(60)]
    answers = list(fake().generate(requests))
    logprobs = [answer.option_logprob for answer in answers]
    assert all(logprob is not None and logprob < 0 for logprob in logprobs) and len(set(logprobs)) > 50
    assert {answer.text for answer in answers} == {None}
