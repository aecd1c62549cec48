"""The engine contract of `engines/base.py`, on the engine without a model."""

import itertools
from typing import Any

import pytest
from engine_kit import Feed
from run_kit import request_of

from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.fake import FakeEngine
from assayline.errors import EngineInterruptedError
from assayline.records import Request, TelemetrySample


def fake(**options: Any) -> FakeEngine:
    return FakeEngine(RunClock.start(), **options)


@pytest.mark.parametrize("window", [1, 3, 8, 100])
def test_the_window_is_filled_and_never_exceeded(window):
    source = Feed([request_of(number, max_tokens=number % 7 + 1) for number in range(60)])
    answers = list(source.answers(fake(window=window, max_num_seqs=4)))
    assert sorted(answer.request_id for answer in answers) == [request_of(number).request_id for number in range(60)]
    assert source.most == min(window, 60)
    assert {answer.window_requests for answer in answers} == {window}


def test_input_is_read_as_it_is_needed():
    source = Feed([request_of(number, max_tokens=1) for number in range(1000)])
    answers = source.answers(fake(window=5))
    assert source.given == 0
    for seen in range(20):
        next(answers)
        assert source.given <= seen + 5


def test_short_answers_overtake_long_ones():
    requests = [request_of(0, max_tokens=50), *(request_of(number, max_tokens=1) for number in range(1, 20))]
    answers = list(fake(window=4).generate(requests))
    assert answers[-1].request_id == requests[0].request_id


def test_none_is_nothing_for_now_and_not_the_end():
    none: list[Request | None] = [None]
    requests = none * 3 + [request_of(0)] + none * 30 + [request_of(1), request_of(2)] + none * 2
    assert len(list(fake(window=2).generate(requests))) == 3


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


def test_stamps_are_in_order():
    names = [f"{name}_at_s" for name in ("arrived", "queued", "scheduled", "first_token", "last_token", "finished")]
    for answer in fake(step_s=0.001).generate([request_of(number) for number in range(10)]):
        stamps = [getattr(answer, name) for name in names]
        assert stamps == sorted(stamps) and stamps[0] > 0
        assert answer.output_token_ids is not None and answer.output_tokens == len(answer.output_token_ids)


def test_a_stop_is_an_exception_after_what_had_finished():
    seen: list[str] = []
    engine = fake(window=4, hooks=EngineHooks(should_stop=lambda: len(seen) >= 3))
    with pytest.raises(EngineInterruptedError, match="stopped on request"):
        for answer in engine.generate(request_of(number, max_tokens=number + 1) for number in range(100)):
            seen.append(answer.request_id)
    assert len(seen) == 3


def test_an_iterator_left_early_leaves_the_engine_usable():
    engine = fake(window=4)
    answers = engine.generate([request_of(number) for number in range(50)])
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert [row.request_id for row in engine.generate([request_of(99)])] == ["request-00099"]


def test_counters_are_reported():
    samples: list[TelemetrySample] = []
    engine = fake(hooks=EngineHooks(on_sample=samples.append))
    list(engine.generate([request_of(number, max_tokens=4) for number in range(10)]))
    assert samples[-1].output_tokens == 40 and samples[-1].in_flight_requests == 0
    assert samples[-1].engine_steps >= 4
