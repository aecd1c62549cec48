"""Requests: count in = count out, sampling, seeds, lengths, errors as rows."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_kit import prepare

from assayline.errors import SpecError
from assayline.records import Prompt
from assayline.requests.build import build_requests, make_request_id, seed_repeat
from assayline.requests.chat import ChatRenderer
from assayline.requests.model_config import max_model_len_of
from assayline.spec.evaluation import EvalSpec

GOOD: dict[str, Any] = {"prompt": "bako mitu", "options": {}}


def spec_of(rows: list[Any], sampling: dict[str, Any] | None = None, repeats: int = 1, **chat: Any) -> EvalSpec:
    return EvalSpec.model_validate(
        {
            "model": "m",
            "sampling": sampling or {},
            "chat": chat,
            "prompts": {
                "source": {"kind": "inline", "rows": rows},
                "repeats": repeats,
                "columns": {"sampling": "options"},
            },
        }
    )


def test_a_prompt_becomes_its_repeats(tokenizer):
    spec = spec_of([GOOD], {"temperature": 0.5, "n": 2, "seed": 10}, repeats=3)
    (one,) = prepare(spec, tokenizer)
    assert one.errors == [] and one.ready == one.requests
    assert [request.repeat_index for request in one.requests] == list(range(6))
    assert [request.sampling for request in one.requests] == [
        {"temperature": 0.5, "max_tokens": None, "seed": 10 + repeat} for repeat in range(6)
    ]
    rendered = ChatRenderer(spec.chat, tokenizer).render(one.prompt.messages)
    assert {(tuple(request.prompt_token_ids), request.rendered) for request in one.requests} == {
        (tuple(rendered.token_ids), rendered.text)
    }


def test_ids_are_of_content_and_position(tokenizer):
    rows = [GOOD, GOOD, {"prompt": "tu", "options": {}}]
    requests = [request for one in prepare(spec_of(rows, repeats=2), tokenizer) for request in one.requests]
    ids = [request.request_id for request in requests]
    assert len(set(ids)) == 6 and all(len(id) == 32 for id in ids)
    assert ids == [make_request_id(one.prompt_id, one.occurrence, one.repeat_index) for one in requests]
    assert ids == [
        request.request_id for one in prepare(spec_of(rows, repeats=2), tokenizer) for request in one.requests
    ]


def test_the_rows_sampling_lies_over_the_specs(tokenizer):
    rows = [{"prompt": "a", "options": {"max_tokens": 5, "seed": 3}}, {"prompt": "b", "options": {}}]
    given_sampling = {"max_tokens": 64, "top_p": 0.9}
    first, second = prepare(spec_of(rows, given_sampling, repeats=2), tokenizer)
    assert [request.sampling for request in first.requests] == [
        {"max_tokens": 5, "top_p": 0.9, "seed": 3},
        {"max_tokens": 5, "top_p": 0.9, "seed": 4},
    ]
    assert second.requests[0].sampling == {"max_tokens": 64, "top_p": 0.9}
    assert given_sampling == {"max_tokens": 64, "top_p": 0.9}


def test_without_a_seed_none_is_made_up(tokenizer):
    for sampling, expected in (({}, {}), ({"seed": -1}, {"seed": -1}), ({"seed": None}, {"seed": None})):
        (one,) = prepare(spec_of([GOOD], sampling, repeats=2), tokenizer)
        assert [request.sampling for request in one.requests] == [{"max_tokens": None, **expected}] * 2


@pytest.mark.parametrize("sampling", [{"n": 0}, {"n": "2"}, {"n": True}, {"seed": "x"}, {"seed": 1.5}])
def test_counts_and_seeds_that_are_not_numbers_stop_the_run(sampling):
    with pytest.raises(SpecError, match=r"sampling\.(n|seed) is .*, expected a whole number"):
        build_requests(spec_of([GOOD], sampling), [], object())  # type: ignore[arg-type]


FAILING: dict[str, dict[str, Any]] = {
    "prompt_too_long": {"prompt": "ba " * 400, "options": {}},
    "template_error": {"prompt": "refuse me", "options": {}},
    "row_error": {"prompt": "a", "options": {"n": 2}},
    "empty_prompt": {"prompt": "", "options": {}},
}
TEMPLATE = "{% if 'refuse' in messages[0].content %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"


@pytest.mark.parametrize("kind", FAILING)
def test_a_bad_prompt_is_its_own_rows_only(tokenizer, kind):
    prepared = prepare(spec_of([GOOD, FAILING[kind], GOOD], {"seed": 1}, repeats=2, template=TEMPLATE), tokenizer)
    good, bad, last = prepared
    assert len(good.ready) == len(last.ready) == 2 and bad.ready == []
    assert [error.request_id for error in bad.errors] == [request.request_id for request in bad.requests]
    for error in bad.errors:
        assert (error.error_kind, error.worker) == (kind, "prepare")
        assert (error.engine_generation, error.window_requests) == (0, 0)
        assert error.text is None and error.finish_reason is None and error.finished_at_s is None


@settings(deadline=None, max_examples=settings.default.max_examples // 4)
@given(st.lists(st.sampled_from(["good", "bad", *FAILING]), min_size=1), st.integers(1, 3), st.integers(1, 3))
def test_count_in_is_count_out(session_tokenizer, kinds, repeats, n):
    rows = [{**FAILING, "good": GOOD, "bad": {"options": {}, "prompt": None}}[kind] for kind in kinds]
    prepared = prepare(spec_of(rows, {"n": n}, repeats=repeats, template=TEMPLATE), session_tokenizer)
    assert [len(one.requests) for one in prepared] == [repeats * n] * len(rows)
    assert [len(one.errors) for one in prepared] == [0 if kind == "good" else repeats * n for kind in kinds]
    assert len({request.request_id for one in prepared for request in one.requests}) == len(rows) * repeats * n
    assert [one.prompt.source_row for one in prepared] == list(range(len(rows)))


def test_a_prompt_may_leave_room_for_one_token(tokenizer):
    spec = spec_of([GOOD])
    tokens = len(prepare(spec, tokenizer, None)[0].requests[0].prompt_token_ids)
    assert prepare(spec, tokenizer, tokens + 1)[0].errors == []
    (error,) = prepare(spec, tokenizer, tokens)[0].errors
    assert error.error_kind == "prompt_too_long"
    assert error.prompt_tokens == tokens
    assert f"has {tokens} tokens, but the context is {tokens} tokens" in (error.error_message or "")
    (request,) = prepare(spec, tokenizer, tokens)[0].requests
    assert request.rendered and request.prompt_token_ids == []


def test_a_bad_row_keeps_its_own_error(tokenizer):
    _, bad = prepare(spec_of([GOOD, {"prompt": None, "options": {}}]), tokenizer)
    assert bad.errors[0].error_kind == "row_error"
    assert bad.errors[0].error_message == "The prompt is null, expected text."
    assert (bad.requests[0].prompt_token_ids, bad.requests[0].rendered, bad.prompt.messages) == ([], None, [])
    assert bad.errors[0].prompt_tokens is None


def test_prompts_that_are_ids_are_not_rendered(tokenizer):
    spec = EvalSpec.model_validate(
        {
            "model": "m",
            "prompts": {"source": {"kind": "synthetic", "count": 3, "prompt_tokens": 40, "output_tokens": 7}},
        }
    )
    tokenizer.chat_template = "{{ raise_exception('not me') }}"
    for one in prepare(spec, tokenizer):
        (request,) = one.ready
        assert len(request.prompt_token_ids) == 40
        assert request.sampling == {"max_tokens": 7, "min_tokens": 7, "ignore_eos": True}
        assert request.rendered == one.prompt.messages[0]["content"]


def test_prompts_are_taken_one_at_a_time(tokenizer):
    taken = []

    def million() -> Iterator[Prompt]:
        for number in range(1_000_000):
            taken.append(number)
            yield Prompt(
                prompt_id=f"{number:032x}",
                occurrence=0,
                source_row=number,
                source_id=None,
                messages=[{"role": "user", "content": "bako"}],
            )

    spec = spec_of([GOOD])
    prepared = build_requests(spec, million(), ChatRenderer(spec.chat, tokenizer))
    assert taken == []
    assert len(list(itertools.islice(prepared, 3))) == 3
    assert taken == [0, 1, 2]


@pytest.mark.parametrize(
    ("config", "args", "expected"),
    [
        ({"max_position_embeddings": 4096}, {}, 4096),
        ({"max_position_embeddings": 4096}, {"max_model_len": 512}, 512),
        ({"max_position_embeddings": 4096}, {"max_model_len": -1}, 4096),
        ({"max_position_embeddings": 4096}, {"max_model_len": None}, 4096),
        ({"n_positions": 1024}, {}, 1024),
        ({"seq_length": 2048, "max_position_embeddings": 8192}, {}, 2048),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, {}, 131072),
        ({"text_config": {"max_position_embeddings": 32}, "max_position_embeddings": 77}, {}, 32),
        ({"text_config": {}, "max_seq_len": 99}, {}, 99),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}, {}, 400),
        ({"max_position_embeddings": 100, "rope_parameters": {"full": {"rope_type": "dynamic", "factor": 2}}}, {}, 200),
        ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {}, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}, 100),
        ({"hidden_size": 64}, {}, None),
        ([], {}, None),
        (None, {}, None),
        (None, {"max_model_len": 5}, 5),
    ],
)
def test_the_context_length(tmp_path, config, args, expected):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert max_model_len_of(tmp_path, args) == expected


def test_seed_repeat_never_reaches_the_seed_that_means_none():
    assert [seed_repeat({"seed": -3}, number)["seed"] for number in range(5)] == [-3, -2, 0, 1, 2]
    assert [seed_repeat({"seed": 0}, number)["seed"] for number in range(3)] == [0, 1, 2]
    assert seed_repeat({"seed": -1}, 4) == {"seed": -1}
