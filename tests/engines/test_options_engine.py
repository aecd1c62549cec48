"""Log-probabilities of options on a real vLLM engine, against the same model in transformers."""

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import ARGS, Asker, by_id, open_engine

from assayline.chat import ChatRenderer
from assayline.clock import RunClock
from assayline.engines.fake import FakeEngine
from assayline.engines.offline import OfflineEngine
from assayline.prompts import load_prompts
from assayline.records import Request
from assayline.requests import Prepared, build_requests
from assayline.spec import EvalSpec

pytestmark = pytest.mark.vllm


def prepare(asker: Asker, rows: list[dict[str, Any]], **chat: Any) -> list[Prepared]:
    spec = EvalSpec.model_validate({
        "model": "m", "chat": chat, "scorers": [{"kind": "loglikelihood"}],
        "prompts": {"source": {"kind": "inline", "rows": rows}, "columns": {"options": "choices"}},
    })
    renderer = ChatRenderer(spec.chat, asker.tokenizer)
    return list(build_requests(spec, load_prompts(spec.prompts), renderer, 256))


@pytest.fixture(scope="module")
def arithmetic(asker: Asker) -> list[Prepared]:
    """Sums with four answers of one or two tokens each, the right one among them."""
    rows = []
    for row in asker.rows[:40]:
        right = int(row["answer"])
        options = sorted({right, (right + 3) % 19, (right + 7) % 19, (right + 11) % 19})
        rows.append({"prompt": row["question"], "target": right, "choices": options})
    return prepare(asker, rows)


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32").eval()


def reference_logprob(model: Any, request: Request) -> float:
    import torch

    ids = torch.tensor([request.prompt_token_ids])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0].double(), dim=-1)
    first = len(request.prompt_token_ids) - (request.option_tokens or 0)
    return float(sum(logprobs[at - 1, request.prompt_token_ids[at]] for at in range(first, ids.shape[1])))


def test_sums_are_those_of_another_implementation(
    engine: OfflineEngine, arithmetic: list[Prepared], reference: Any
) -> None:
    requests = [request for prompt in arithmetic for request in prompt.ready]
    assert {request.option_tokens for request in requests} == {1, 2}
    answers = by_id(engine.generate(requests))
    for request in requests:
        answer = answers[request.request_id]
        assert answer.error_kind is None, answer.error_message
        assert answer.option_logprob == pytest.approx(reference_logprob(reference, request), abs=2e-3, rel=1e-3)
        assert answer.text is answer.prompt_logprobs is answer.output_token_ids is answer.logprobs is None
        assert answer.output_tokens == 1 and answer.finish_reason in ("length", "stop")
        assert answer.prompt_tokens == len(request.prompt_token_ids)
        assert answer.first_token_at_s and answer.finished_at_s


def test_the_likeliest_option_is_mostly_right(engine: OfflineEngine, arithmetic: list[Prepared]) -> None:
    answers = by_id(engine.generate([request for prompt in arithmetic for request in prompt.ready]))
    right = 0
    for prompt in arithmetic:
        best = max(prompt.ready, key=lambda request: answers[request.request_id].option_logprob or -math.inf)
        right += best.option == prompt.prompt.target
    assert right / len(arithmetic) > 0.9


def test_repeats_are_not_shortened_by_the_prefix_cache(engine: OfflineEngine, asker: Asker, reference: Any) -> None:
    """What is cached has no log-probabilities: a prompt of several blocks, asked again, must be computed again."""
    text = "What is 3 + 4? " * 22
    [prompt] = prepare(asker, [{"prompt": text, "choices": ["7", "What is 8 + 1? " * 4]}])
    assert len(prompt.ready[0].prompt_token_ids) > 128
    for _ in range(2):
        answers = by_id(engine.generate(prompt.ready))
        for request in prompt.ready:
            expected = reference_logprob(reference, request)
            assert answers[request.request_id].option_logprob == pytest.approx(expected, abs=2e-3, rel=1e-3)


@pytest.fixture(scope="module")
def small_steps(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineEngine]:
    """Steps of 32 tokens, so that a prompt's log-probabilities come in pieces; and a stamp per token."""
    log = tmp_path_factory.mktemp("small") / "engine.log"
    args = {**ARGS, "max_num_batched_tokens": 32, "enable_chunked_prefill": True}
    with closing(open_engine(tiny_model, log, args=args, record_token_times=True)) as opened:
        yield opened


def test_a_prompt_in_several_steps_has_the_same_sum(small_steps: OfflineEngine, asker: Asker, reference: Any) -> None:
    [prompt] = prepare(asker, [{"prompt": "What is 3 + 4? " * 12, "choices": ["7", "What is 8 + 1? " * 6]}])
    assert min(len(request.prompt_token_ids) for request in prompt.ready) > 64
    answers = by_id(small_steps.generate(prompt.ready))
    for request in prompt.ready:
        expected = reference_logprob(reference, request)
        assert answers[request.request_id].option_logprob == pytest.approx(expected, abs=2e-3, rel=1e-3)
        assert len(answers[request.request_id].token_at_s or []) == answers[request.request_id].output_tokens


def test_the_fake_engine_has_likelihoods_too(arithmetic: list[Prepared]) -> None:
    requests = [request for prompt in arithmetic for request in prompt.ready]
    answers = by_id(FakeEngine(RunClock.start()).generate(requests))
    logprobs = [answers[request.request_id].option_logprob for request in requests]
    assert all(logprob is not None and logprob < 0 for logprob in logprobs) and len(set(logprobs)) > 50
    assert {answer.text for answer in answers.values()} == {None}
