"""Synthetic prompts: exact counts, distinct beginnings, determinism."""

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assayline.errors import ModelError, SpecError
from assayline.prompts import load_prompts
from assayline.prompts.sources.synthetic import SyntheticPrompts, stable_words, usable_ids
from assayline.records import Prompt
from assayline.requests.build import build_requests
from assayline.requests.chat import ChatRenderer
from assayline.spec.prompts import PromptSpec, SyntheticSource


def source(count: int = 50, prompt_tokens: Any = 32, output_tokens: Any = 8, **more: Any) -> SyntheticSource:
    return SyntheticSource.model_validate(
        {"kind": "synthetic", "count": count, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **more}
    )


def ids_of(made: SyntheticPrompts, count: int) -> list[list[int]]:
    ids = [made.read(number).prompt_token_ids for number in range(count)]
    return [one for one in ids if one is not None]


def shared_tokens(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def most_shared(ids: list[list[int]]) -> int:
    """Return the longest shared prefix of any pair: after sorting it is between neighbors."""
    ordered = sorted(ids)
    return max(shared_tokens(a, b) for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize("count", [50, 400])
def test_counts_are_exact_and_ids_are_plain(tokenizer, count):
    allowed = set(range(len(tokenizer))) - {0, 1, 2}
    for ids in ids_of(SyntheticPrompts(source(count, prompt_tokens=77), tokenizer), count):
        assert len(ids) == 77
        assert set(ids) <= allowed


def test_words_encode_back(tokenizer):
    words = stable_words(tokenizer, usable_ids(tokenizer))
    assert len(words) >= 50
    made = SyntheticPrompts(source(50, prompt_tokens=200, shared_prefix_tokens=20), tokenizer)
    for number in range(50):
        parts = made.read(number)
        assert tokenizer(parts.messages[0]["content"], add_special_tokens=False)["input_ids"] == parts.prompt_token_ids


def test_a_word_that_does_not_come_back_is_left_out(tokenizer):
    words = stable_words(tokenizer, usable_ids(tokenizer))
    outcast = words[3]

    class Lossy:
        """Decodes one word as another."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return tokenizer(*args, **kwargs)

        def decode(self, ids: list[int], **kwargs: Any) -> Any:
            return tokenizer.decode([words[0] if id == outcast else id for id in ids], **kwargs)

    assert stable_words(Lossy(), usable_ids(tokenizer)) == [word for word in words if word != outcast]


def test_more_prompts_than_words_use_the_whole_vocabulary(tokenizer):
    count = len(usable_ids(tokenizer))
    made = SyntheticPrompts(source(count), tokenizer)
    assert made.counter_tokens == 1
    assert len({ids[0] for ids in ids_of(made, count)}) == count


@pytest.mark.parametrize(("extra", "counter_tokens"), [(-500, 1), (0, 1), (1, 2), (3000, 2)])
@pytest.mark.parametrize("prefix", [0, 16])
def test_no_two_prompts_share_more_than_is_said(tokenizer, extra, counter_tokens, prefix):
    count = len(usable_ids(tokenizer)) + extra
    made = SyntheticPrompts(source(count, shared_prefix_tokens=prefix), tokenizer)
    ids = ids_of(made, count)
    assert made.counter_tokens == counter_tokens
    assert most_shared(ids) == prefix + counter_tokens - 1
    assert len({tuple(one[:prefix]) for one in ids}) == 1


@settings(deadline=None, max_examples=settings.default.max_examples // 3)
@given(st.integers(0, 2**40), st.integers(0, 3000))
def test_a_prompt_depends_on_seed_and_number_alone(session_tokenizer, seed, number):
    spec = source(4000, prompt_tokens={"mean": 20, "stdev": 5, "min": 10, "max": 30}, seed=seed)
    made = SyntheticPrompts(spec, session_tokenizer)
    made.read(0)
    assert made.read(number) == SyntheticPrompts(spec, session_tokenizer).read(number)


def test_seeds_differ(tokenizer):
    length = {"mean": 100, "stdev": 20}
    first, second = (SyntheticPrompts(source(output_tokens=length, seed=seed), tokenizer) for seed in (1, 2))
    assert ids_of(first, 5) != ids_of(second, 5)
    assert [first.read(n).sampling for n in range(5)] != [second.read(n).sampling for n in range(5)]


def test_lengths_are_normal_within_bounds(tokenizer):
    length = {"mean": 100, "stdev": 20, "min": 60, "max": 130}
    made = SyntheticPrompts(source(500, prompt_tokens=length, output_tokens=length), tokenizer)
    parts = [made.read(number) for number in range(500)]
    for lengths in ([len(one.prompt_token_ids or []) for one in parts], [one.sampling["max_tokens"] for one in parts]):
        assert min(lengths) >= 60 and max(lengths) == 130
        assert 95 < sum(lengths) / 500 < 105
        assert 12 < (sum((one - 100) ** 2 for one in lengths) / 500) ** 0.5 < 22
    assert any(len(one.prompt_token_ids or []) != one.sampling["max_tokens"] for one in parts)


def test_wide_lengths_without_bounds_stay_above_the_counter(tokenizer):
    wide = {"mean": 10, "stdev": 50}
    made = SyntheticPrompts(source(300, prompt_tokens=wide, output_tokens=wide, shared_prefix_tokens=4), tokenizer)
    parts = [made.read(number) for number in range(300)]
    assert min(len(one.prompt_token_ids or []) for one in parts) == 5
    assert min(one.sampling["max_tokens"] for one in parts) == 1


@pytest.mark.parametrize("length", [16, {"mean": 32, "min": 16}])
def test_lengths_that_leave_no_room_are_refused(tokenizer, length):
    with pytest.raises(SpecError, match=r"is 16, expected at least 17: 16 shared tokens and 1 that tell 50"):
        SyntheticPrompts(source(prompt_tokens=length, shared_prefix_tokens=16), tokenizer)


def test_a_tokenizer_of_special_tokens_is_refused():
    class Empty:
        all_special_ids = (0,)
        added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012

        def get_vocab(self) -> dict[str, int]:
            return {"<bos>": 0}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return []

    with pytest.raises(ModelError, match="has 0 tokens that are not special"):
        SyntheticPrompts(source(), Empty())


def test_prompts_are_made_as_they_are_asked_for(tokenizer):
    spec = PromptSpec(source=source(10**9, prompt_tokens=64))
    tracemalloc.start()
    try:
        prompts = list(itertools.islice(load_prompts(spec, tokenizer), 5))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert all(isinstance(prompt, Prompt) and len(prompt.prompt_token_ids or []) == 64 for prompt in prompts)
    shuffled = load_prompts(spec.model_copy(update={"source": source(1000), "shuffle_seed": 1, "limit": 3}), tokenizer)
    assert [isinstance(prompt, Prompt) and prompt.source_row for prompt in shuffled] != [0, 1, 2]


def test_a_stored_spec_is_read_like_the_one_it_was(tokenizer):
    spec = PromptSpec(source=source(count=3))
    stored = PromptSpec.model_validate(spec.model_dump(mode="json"))
    assert stored.columns.model_fields_set, "its defaults are written out"
    assert list(load_prompts(stored, tokenizer)) == list(load_prompts(spec, tokenizer))


def test_each_prompt_has_media_of_its_own_and_the_text_that_it_had(tokenizer):
    media = {"images": {"count": 2, "width": 8, "height": 8}, "audios": {"seconds": 1.0}}
    plain, seen = (
        [item for item in load_prompts(PromptSpec(source=source(20, **more)), tokenizer) if isinstance(item, Prompt)]
        for more in ({}, media)
    )
    assert [prompt.prompt_token_ids for prompt in plain] == [prompt.prompt_token_ids for prompt in seen]
    assert [[one["kind"] for one in prompt.media or []] for prompt in seen] == [["image", "image", "audio"]] * 20
    assert len({one["digest"] for prompt in seen for one in prompt.media or []}) == 60
    assert all(prompt.media is None for prompt in plain)


def test_placeholders_of_media_stand_before_the_text(tokenizer, make_spec):
    synthetic = {"kind": "synthetic", "count": 2, "prompt_tokens": 32, "output_tokens": 4, "images": {"count": 2}}
    spec = make_spec(prompts={"source": synthetic, "columns": {}, "template": None})
    renderer = ChatRenderer(spec.chat, tokenizer, None, {"image": "ba"})
    prepared = list(build_requests(spec, load_prompts(spec.prompts, tokenizer), renderer))
    expected = tokenizer("baba", add_special_tokens=False)["input_ids"]
    for one in prepared:
        [request] = one.ready
        assert request.prompt_token_ids == expected + (one.prompt.prompt_token_ids or [])
        assert len(request.media or []) == 2
