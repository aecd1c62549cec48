"""A real vLLM whose KV cache holds few answers: it preempts requests, and their answers are complete all the same."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_kit import ARGS, NO_PREEMPTIONS, by_id, open_engine

from assayline.engines.client import HostedEngine
from assayline.records import Completion, Request

pytestmark = [
    pytest.mark.rare,
    pytest.mark.vllm,
    pytest.mark.skipif(NO_PREEMPTIONS is None, reason="this vLLM counts no preemptions"),
]

LENGTHS = (100, 60, 8, 90, 16, 40, 100, 8, 70, 24, 12, 80, 30, 8)
SMALL = {"block_size": 32, "num_gpu_blocks_override": 12, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def small(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedEngine]:
    log = tmp_path_factory.mktemp("small") / "engine.log"
    with closing(open_engine(tiny_model, log, args={**ARGS, **SMALL})) as opened:
        yield opened


def test_offline_engine_gives_the_same_answers_when_vllm_preempts(small, asker):
    requests = [asker.ask(ignore_eos=True, max_tokens=tokens) for tokens in LENGTHS]
    together = answer(small, requests)
    small.set_window(1)
    alone = answer(small, requests)
    assert count_preemptions(together) > 3
    assert count_preemptions(alone) == 0
    assert [one.output_token_ids for one in together] == [one.output_token_ids for one in alone]


def answer(engine: HostedEngine, requests: list[Request]) -> list[Completion]:
    answers = by_id(engine.generate(requests))
    return [answers[request.request_id] for request in requests]


def count_preemptions(answers: list[Completion]) -> int:
    return sum(answer.preemptions or 0 for answer in answers)
