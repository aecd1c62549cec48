"""Prompts made after a trace: exact lengths, shared blocks, times, and what a row may get wrong."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from run_kit import build_tokenizer

from assayline.errors import PromptError
from assayline.prompts import BadRow, load_prompts
from assayline.prompts.row import MOST_TOKENS
from assayline.records import Prompt
from assayline.requests.build import build_requests
from assayline.requests.chat import ChatRenderer
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import ChatSpec, PromptSpec

BLOCK = 16


def mooncake(*rows: dict[str, Any], folder: Path, **source: Any) -> PromptSpec:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"kind": "trace", "path": str(path), "block_tokens": BLOCK, **source}
    return PromptSpec.model_validate({"source": given})


def row(tokens: int, hash_ids: list[int] | None = None, timestamp: Any = 0, output: Any = 4) -> dict[str, Any]:
    blocks = {} if hash_ids is None else {"hash_ids": hash_ids}
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, **blocks}


def read(spec: PromptSpec, tokenizer: Any) -> list[Prompt | BadRow]:
    return list(load_prompts(spec, tokenizer))


def ids_of(spec: PromptSpec, tokenizer: Any) -> list[list[int]]:
    prompts = read(spec, tokenizer)
    assert all(isinstance(prompt, Prompt) for prompt in prompts)
    return [prompt.prompt_token_ids or [] for prompt in prompts if isinstance(prompt, Prompt)]


def shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_lengths_are_the_trace_s_and_answers_are_as_long_as_recorded(tokenizer, tmp_path):
    spec = mooncake(row(1), row(37, [1, 2, 3], output=9), row(400), folder=tmp_path)
    prompts = [prompt for prompt in read(spec, tokenizer) if isinstance(prompt, Prompt)]
    assert [len(prompt.prompt_token_ids or []) for prompt in prompts] == [1, 37, 400]
    assert prompts[1].sampling == {"max_tokens": 9, "min_tokens": 9, "ignore_eos": True}
    assert not {id for prompt in prompts for id in prompt.prompt_token_ids or []} & set(tokenizer.all_special_ids)


def test_trace_prompts_share_blocks_with_equal_hashes(tokenizer, tmp_path):
    numbers = [[5, 6, 7], [5, 6, 8], [5, 9], [10, 6, 7], [5, 6, 7], [5, 6]]
    tokens = [48, 48, 32, 48, 40, 40]
    ids = ids_of(mooncake(*map(row, tokens, numbers), folder=tmp_path), tokenizer)
    for (one, its), (other, theirs) in itertools.combinations(zip(ids, numbers, strict=True), 2):
        blocks = shared(its, theirs)
        expected = min(blocks * BLOCK, len(one), len(other))
        assert expected <= shared(one, other) < expected + BLOCK, (its, theirs)
    assert shared(ids[0], ids[4]) == 40, "a last block that is not full begins like the full one"
    assert ids[4] != ids[5], "what no number covers is the row's own"
    assert ids[0][BLOCK:] == ids[3][BLOCK:], "the same text, after another"


def test_rows_without_numbers_share_nothing_and_a_seed_is_another_trace(tokenizer, tmp_path):
    rows = [row(64) for _ in range(20)]
    ids = ids_of(mooncake(*rows, folder=tmp_path), tokenizer)
    assert max(shared(one, other) for one, other in itertools.combinations(ids, 2)) < BLOCK
    assert ids == ids_of(mooncake(*rows, folder=tmp_path), tokenizer)
    assert not set(map(tuple, ids)) & set(map(tuple, ids_of(mooncake(*rows, folder=tmp_path, seed=1), tokenizer)))


@pytest.mark.parametrize(("vocab_size", "round_trips"), [(900, True), (300, False)])
def test_text_encodes_back_where_there_are_words_enough(tmp_path, vocab_size, round_trips):
    tokenizer = build_tokenizer(vocab_size)
    spec = mooncake(row(100, [1]), folder=tmp_path)
    [prompt] = read(spec, tokenizer)
    encoded = tokenizer(prompt.messages[0]["content"], add_special_tokens=False)["input_ids"]
    assert (encoded == prompt.prompt_token_ids) == round_trips


def test_times_are_seconds_since_the_first_row(tokenizer, tmp_path):
    spec = mooncake(*(row(4, timestamp=stamp) for stamp in (1000, 1250, 4000)), folder=tmp_path)
    prompts = [prompt for prompt in read(spec, tokenizer) if isinstance(prompt, Prompt)]
    assert [prompt.due_offset_s for prompt in prompts] == [0, 0.25, 3]
    shuffled = spec.model_copy(update={"shuffle_seed": 1})
    assert {p.source_row: p.due_offset_s for p in read(shuffled, tokenizer) if isinstance(p, Prompt)} == {
        0: 0, 1: 0.25, 2: 3
    }  # fmt: skip


def test_azure_has_dates_and_no_blocks(tokenizer, tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.5000000,30,3\n"
        "2023-11-17 00:00:00.7500000,20,2\n"
        "2023-11-17 01:00:01.500000+01:00,10,1\n"
    )
    source = {"kind": "trace", "path": str(path)}
    prompts = [p for p in read(PromptSpec.model_validate({"source": source}), tokenizer) if isinstance(p, Prompt)]
    assert [len(prompt.prompt_token_ids or []) for prompt in prompts] == [30, 20, 10]
    assert [prompt.sampling["max_tokens"] for prompt in prompts] == [3, 2, 1]
    assert [prompt.due_offset_s for prompt in prompts] == pytest.approx([0, 1.25, 2], abs=1e-6)


def test_burstgpt_has_seconds_and_lengths_with_a_point(tokenizer, tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,30,3,33,Conversation log\n45.5,GPT-4,20.0,2.0,22.0,API log\n118,ChatGPT,10,0,10,Conversation log\n"
    )
    source = {"kind": "trace", "path": str(path)}
    first, second, failed = read(PromptSpec.model_validate({"source": source}), tokenizer)
    assert isinstance(first, Prompt) and isinstance(second, Prompt) and isinstance(failed, BadRow)
    assert [len(one.prompt_token_ids or []) for one in (first, second)] == [30, 20]
    assert (second.sampling["max_tokens"], second.due_offset_s) == (2, 40.5)
    assert "Response tokens holds '0', expected a number of tokens from 1" in failed.message


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(-5), "input_length holds -5, expected a number of tokens from 1"),
        (row(0), "input_length holds 0"),
        (row(MOST_TOKENS + 1), f"from 1 to {MOST_TOKENS}"),
        (row(4, output=-1), "output_length holds -1"),
        (row(4, output=None), "output_length holds None"),
        (row(4, output=True), "output_length holds True"),
        (row(40, [1, 2, 3, 4]), r"has 4 blocks, and a prompt of 40 tokens has at most 3 of 16.*block_tokens"),
        (row(40, ["a"]), "expected whole numbers"),  # type: ignore[list-item]
        ({"timestamp": 1, "input_length": 4}, "Column 'output_length', named by the trace's format"),
    ],
)
def test_a_row_that_cannot_be_is_an_error_row(tokenizer, tmp_path, bad, words):
    first, second = read(mooncake(row(4), bad, folder=tmp_path), tokenizer)
    assert isinstance(first, Prompt) and isinstance(second, BadRow)
    assert second.kind == "row_error"
    with pytest.raises(PromptError, match=words):
        raise PromptError(second.message)


def test_a_first_row_without_the_columns_and_other_fields_stop_the_run(tokenizer, tmp_path):
    with pytest.raises(PromptError, match=r"first row does not fit.*'GeneratedTokens'.*ContextTokens"):
        read(mooncake({"TIMESTAMP": "2023-11-16 18:01:50", "ContextTokens": 3}, folder=tmp_path), tokenizer)


def test_trace_prompt_longer_than_the_context_is_an_error_row(tokenizer, tmp_path):
    spec = mooncake(row(60, output=4), row(61, output=4), row(70), folder=tmp_path)
    whole = EvalSpec.model_validate({"model": "m", "prompts": spec})
    renderer = ChatRenderer(ChatSpec(), tokenizer, 64)
    made = list(build_requests(whole, load_prompts(spec, tokenizer), renderer))
    assert [bool(one.errors) for one in made] == [False, True, True]
    assert "has 61 tokens, but the context is 64 tokens (max_model_len), at least 4 of them" in str(
        made[1].errors[0].error_message
    )
    assert made[0].requests[0].due_offset_s == 0
