"""Options: requests that end in a given answer, where its tokens begin, and rows whose options cannot be asked for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_kit import prepare

from assayline.prompts import RowError
from assayline.requests.build import make_request_id, render_options
from assayline.requests.chat import ChatRenderer, Rendered
from assayline.spec.evaluation import OPTION_SAMPLING, EvalSpec
from assayline.spec.identity import config_id

SCORERS = [{"kind": "loglikelihood"}]
TEXT = st.text(st.sampled_from(" \nabkomitu"), max_size=12)


def spec_of(rows: list[Any], repeats: int = 1, **more: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": rows}, "repeats": repeats, "columns": {"options": "choices"}}
    return EvalSpec.model_validate({"model": "m", "scorers": SCORERS, "prompts": prompts, **more})


def test_each_option_and_repeat_is_a_request(tokenizer):
    spec = spec_of(
        [{"prompt": "bako", "target": "mi", "choices": ["mi", 7, "tu re"]}],
        repeats=2,
        sampling={"temperature": 0.7, "stop": ["x"]},
    )
    (one,) = prepare(spec, tokenizer)
    assert one.prompt.options == ["mi", "7", "tu re"] and one.errors == []
    assert [(r.repeat_index, r.option_index, r.option) for r in one.ready] == [
        (repeat, number, text) for repeat in range(2) for number, text in enumerate(["mi", "7", "tu re"])
    ]
    assert {request.request_id for request in one.ready} == {
        make_request_id(one.prompt.prompt_id, 0, repeat, number) for repeat in range(2) for number in range(3)
    }
    assert len({request.request_id for request in one.ready}) == 6
    assert all(request.sampling == OPTION_SAMPLING for request in one.ready)
    rendered = ChatRenderer(spec.chat, tokenizer).render(one.prompt.messages)
    for request in one.ready:
        assert request.rendered == rendered.text + str(request.option)
        assert request.prompt_token_ids == tokenizer(request.rendered, add_special_tokens=False)["input_ids"]
        assert request.prompt_token_ids[: -(request.option_tokens or 0)] == rendered.token_ids


def reference_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Split at the boundary as the harness documents it."""
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    both = tokenizer(stripped + continuation)["input_ids"]
    alone = tokenizer(stripped)["input_ids"]
    return both[: len(alone)], both[len(alone) :]


@settings(deadline=None)
@given(TEXT.filter(str.strip), st.lists(TEXT.filter(str.strip), min_size=2, max_size=4))
def test_the_boundary_is_the_fields(session_tokenizer, context, options):
    spec = spec_of([{"prompt": context, "choices": options}], chat={"template": "plain"})
    (one,) = prepare(spec, session_tokenizer)
    expected = [reference_pair(session_tokenizer, context, option) for option in options]
    if any(not ending for _, ending in expected):
        assert len(one.errors) == len(options) and "adds no token" in str(one.errors[0].error_message)
        return
    for request, (beginning, ending) in zip(one.ready, expected, strict=True):
        assert request.option_tokens == len(ending)
        assert request.prompt_token_ids == beginning + ending


def test_a_token_across_the_boundary_is_the_prompts():
    class Joining:
        """Encodes "a" and "b" apart, and "ab" as one."""

        def encode(self, text: str) -> list[int]:
            return list(text.replace("ab", "X").encode())

    (first,) = render_options(Rendered("a", [97]), ["bc"], Joining())
    assert first.token_ids == list(b"Xc") and first.option_tokens == 1
    with pytest.raises(RowError, match="adds no token"):
        list(render_options(Rendered("a", [97]), ["b"], Joining()))


def test_a_prompt_without_text_has_no_likelihood():
    class Bytes:
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    with pytest.raises(RowError, match="no tokens before its options"):
        list(render_options(Rendered(" ", [32]), ["b", "c"], Bytes()))


BAD: dict[str, tuple[Any, str]] = {
    "null": (None, "expected a list"),
    "no list": ("[1", "not JSON"),
    "a number": (3, "expected a list of at least two"),
    "one": (["a"], "expected a list of at least two"),
    "an empty one": (["a", " "], "option 2 is ' '"),
    "a null in it": (["a", None], "option 2 is None"),
    "bytes": ([b"a", "b"], "option 1 holds bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_one_error_per_repeat(tokenizer, case):
    value, message = BAD[case]
    good = {"prompt": "a", "choices": ["x", "y"]}
    first, second = prepare(spec_of([good, {"prompt": "b", "choices": value}], repeats=2), tokenizer)
    assert len(first.ready) == 4 and first.errors == []
    assert len(second.requests) == len(second.errors) == 2 and second.ready == []
    assert {request.option_index for request in second.requests} == {None}
    assert all(error.error_kind == "row_error" and message in str(error.error_message) for error in second.errors)


def test_options_in_a_text_are_json(tokenizer):
    (one,) = prepare(spec_of([{"prompt": "a", "choices": '["x", "y"]'}]), tokenizer)
    assert one.prompt.options == ["x", "y"]


def test_one_option_that_is_too_long_is_an_error_of_all(tokenizer):
    (one,) = prepare(spec_of([{"prompt": "ba", "choices": ["x", "ko " * 40]}]), tokenizer, max_model_len=24)
    assert [request.option_index for request in one.requests] == [0, 1]
    assert {error.error_kind for error in one.errors} == {"prompt_too_long"} and len(one.errors) == 2
    assert all(request.prompt_token_ids == [] and request.option_tokens is None for request in one.requests)


def test_options_are_part_of_what_is_asked(tokenizer):
    rows = [{"prompt": "a", "choices": ["x", "y"]}, {"prompt": "a", "choices": ["x", "z"]}]
    first, second = prepare(spec_of(rows), tokenizer)
    assert first.prompt.prompt_id != second.prompt.prompt_id and second.prompt.occurrence == 0


def test_a_spec_that_asks_for_options_is_another_configuration():
    rows = [{"prompt": "a", "choices": ["x", "y"]}]
    asking, writing = spec_of(rows), spec_of(rows, scorers=None)
    assert config_id(asking, "m") != config_id(writing, "m")
    assert config_id(writing, "m") == config_id(spec_of(rows, scorers=[{"kind": "exact_match"}]), "m")
