"""Log-probabilities of options on a real vLLM engine, against the same model in plain torch."""

import math

import pytest
from engine_kit import Asker, by_id, prepare_options
from run_kit import order_of

from assayline.engines.fake import FakeEngine
from assayline.requests.build import PreparedPrompt

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def arithmetic(asker: Asker) -> list[PreparedPrompt]:
    """Sums with four answers of one or two tokens each, the right one among them."""
    rows = []
    for row in asker.rows[:40]:
        right = int(row["answer"])
        options = sorted({right, (right + 3) % 19, (right + 7) % 19, (right + 11) % 19})
        rows.append({"prompt": row["question"], "target": right, "choices": options})
    return prepare_options(asker, rows)


def test_sums_are_those_of_another_implementation(engine, arithmetic, reference):
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


def test_the_likeliest_option_is_mostly_right(engine, arithmetic):
    answers = by_id(engine.generate([request for prompt in arithmetic for request in prompt.ready]))
    right = 0
    for prompt in arithmetic:
        best = max(prompt.ready, key=lambda request: answers[request.request_id].option_logprob or -math.inf)
        right += best.option == prompt.prompt.target
    assert right / len(arithmetic) > 0.9


def test_repeats_are_not_shortened_by_the_prefix_cache(engine, asker, reference):
    """Cached blocks have no log-probabilities: a prompt of several blocks must be computed again."""
    text = "What is 3 + 4? " * 22
    [prompt] = prepare_options(asker, [{"prompt": text, "choices": ["7", "What is 8 + 1? " * 4]}])
    assert len(prompt.ready[0].prompt_token_ids) > 128
    for _ in range(2):
        answers = by_id(engine.generate(prompt.ready))
        for request in prompt.ready:
            expected = reference.option_logprob(request)
            assert answers[request.request_id].option_logprob == pytest.approx(expected, abs=2e-3, rel=1e-3)


def test_the_fake_engine_has_likelihoods_too(arithmetic):
    requests = [request for prompt in arithmetic for request in prompt.ready]
    answers = by_id(FakeEngine(order_of()).generate(requests))
    logprobs = [answers[request.request_id].option_logprob for request in requests]
    assert all(logprob is not None and logprob < 0 for logprob in logprobs) and len(set(logprobs)) > 50
    assert {answer.text for answer in answers.values()} == {None}
