"""A real vLLM whose KV cache holds few answers: those of known lengths wait until they fit, and none is preempted."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import ARGS, NO_PREEMPTIONS, Asker, by_id, open_engine

from assayline.engines.offline import OfflineEngine
from assayline.records import Completion, Request

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(NO_PREEMPTIONS is None, reason="this vLLM counts no preemptions")]

LENGTHS = (100, 60, 8, 90, 16, 40, 100, 8, 70, 24, 12, 80, 30, 8)
"""Few enough that the cost of a token is not known before all have ended."""
SMALL = {"block_size": 32, "num_gpu_blocks_override": 12, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def small(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineEngine]:
    log = tmp_path_factory.mktemp("small") / "engine.log"
    with closing(open_engine(tiny_model, log, args={**ARGS, **SMALL}, holds_back=True)) as opened:
        yield opened


def test_known_lengths_are_not_preempted_and_answers_are_the_same(small: OfflineEngine, asker: Asker) -> None:
    requests = [asker.ask(ignore_eos=True, max_tokens=tokens) for tokens in LENGTHS]
    in_own_way = answer(small, requests)
    known = [replace(r, expected_output_tokens=tokens) for r, tokens in zip(requests, LENGTHS, strict=True)]
    held = answer(small, known)
    assert count_preemptions(in_own_way) > 3
    assert count_preemptions(held) == 0
    assert [one.output_token_ids for one in held] == [one.output_token_ids for one in in_own_way]
    assert any(wait_s(one) > 0.01 for one in held), "those that were held back waited in the queue"


def answer(engine: OfflineEngine, requests: list[Request]) -> list[Completion]:
    answers = by_id(engine.generate(requests))
    return [answers[request.request_id] for request in requests]


def count_preemptions(answers: list[Completion]) -> int:
    return sum(answer.preemptions or 0 for answer in answers)


def wait_s(answer: Completion) -> float:
    assert answer.scheduled_at_s is not None and answer.queued_at_s is not None
    return answer.scheduled_at_s - answer.queued_at_s
