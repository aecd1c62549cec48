"""Seeded requests whose prompts vLLM reads in several steps, which its CPU build cannot sample by itself."""

from contextlib import closing

import pytest
from engine_kit import ARGS, open_async, open_engine
from run_kit import plain_request


@pytest.mark.vllm
@pytest.mark.parametrize("open_one", [open_engine, pytest.param(open_async, marks=pytest.mark.rare)])
def test_a_seeded_answer_is_the_same_if_its_prompt_is_read_in_steps(open_one, tiny_model, tmp_path):
    sampling = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    requests = [
        plain_request(
            f"{seed}", prompt_token_ids=[1 + number % 9 for number in range(100)], sampling=sampling | {"seed": seed}
        )
        for seed in range(4)
    ]
    args = {**ARGS, "max_num_batched_tokens": 64, "enable_prefix_caching": False}
    with closing(open_one(tiny_model, tmp_path / "engine.log", args=args)) as engine:
        together = {each.request_id: each.output_token_ids for each in engine.generate(iter(requests))}
        again = {each.request_id: each.output_token_ids for each in engine.generate(iter(requests[::-1]))}
    with closing(open_one(tiny_model, tmp_path / "whole.log", args={**args, "max_num_batched_tokens": 1024})) as engine:
        whole = {each.request_id: each.output_token_ids for each in engine.generate(iter(requests))}
    assert together == again == whole
    assert len(set(map(tuple, whole.values()))) > 1, "seeds differ"
