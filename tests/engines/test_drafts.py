"""Speculative decoding: the engine reports each request's drafts, and they are what it did."""

import json
import re
import urllib.request
from contextlib import closing
from typing import Any

import pytest
from engine_kit import ARGS, GREEDY, VLLM, Control, open_async, open_engine, parts_of, with_core
from run_kit import request_of

from assayline.engines.messages import Generate
from assayline.records import Completion

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(VLLM < (0, 32), reason="older versions do not report drafts per request"),
]
DRAFT = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SPECULATIVE = {**ARGS, "speculative_config": DRAFT}
REQUESTS = [
    request_of(n, [1, *[30 + n, 31, 32, 33] * 4], **{**GREEDY, "max_tokens": 24, "ignore_eos": True}) for n in range(3)
]


def accepted(answer: Completion) -> int:
    assert answer.acceptance_histogram is not None and len(answer.acceptance_histogram) == 4
    return sum(tokens * drafts for tokens, drafts in enumerate(answer.acceptance_histogram))


@pytest.mark.parametrize("open_one", [open_engine, pytest.param(open_async, marks=pytest.mark.rare)])
def test_accepted_tokens_are_those_beyond_one_per_step(open_one, tiny_model, tmp_path):
    """With one request at a time, a step makes the model's own token and those of the draft that it accepts."""
    control = Control()
    with closing(open_one(tiny_model, tmp_path / "engine.log", control, args=SPECULATIVE)) as engine:
        answers = [answer for request in REQUESTS for answer in engine.generate(iter([request]))]
    [steps] = {sample.engine_steps for sample in control.samples[-1:]}
    assert sum(answer.output_tokens or 0 for answer in answers) == 72 == steps + sum(map(accepted, answers))
    assert all(0 < accepted(answer) <= (answer.draft_tokens or 0) for answer in answers)


@pytest.mark.rare
def test_a_server_of_ours_reports_drafts_as_its_counters_do(tiny_model, tmp_path):
    async def answer(core: Any) -> tuple[list[Completion], str]:
        answers = [await core.answer(Generate(request, 0.0, 1)) for request in REQUESTS]
        url = core._process.url.removesuffix("/v1") + "/metrics"
        with urllib.request.urlopen(url) as page:
            return answers, page.read().decode()

    order = parts_of("server", tiny_model, tmp_path / "log", args=SPECULATIVE)["order"]
    answers, page = with_core(order, answer)

    def count(name: str) -> float:
        [value] = re.findall(rf"^vllm:spec_decode_num_{name}_total{{.*}} (.*)$", page, re.MULTILINE)
        return float(json.loads(value))

    assert count("draft_tokens") == sum(row.draft_tokens or 0 for row in answers)
    assert count("accepted_tokens") == sum(map(accepted, answers)) > 0
    assert count("drafts") == sum(sum(row.acceptance_histogram or []) for row in answers)
