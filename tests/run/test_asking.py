"""Complete runs on the fake engine with options, reasoning, examples and structured output."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from run_kit import FAKE, begin_and_vanish, complete, query

from assayline.errors import PromptsChangedError, SpecError
from assayline.model import identify_model
from assayline.prompts.template import ENVIRONMENT
from assayline.run import prepare
from assayline.run.begin import begin_evaluation
from assayline.run.prepare import Preparation
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

MakeSpec = Callable[..., EvalSpec]
ROWS: list[dict[str, Any]] = [
    {"question": f"{number} + 1?", "answer": number + 1, "choices": [number, number + 1, f"{number}!"]}
    for number in range(10)
]


def asking(make_spec: MakeSpec, rows: list[dict[str, Any]], **prompts: Any) -> EvalSpec:
    """A spec that asks for options."""
    source = {"kind": "inline", "rows": rows}
    columns = {"target": "answer", "options": "choices"}
    return make_spec(
        engine=FAKE,
        scorers=[{"kind": "loglikelihood"}],
        shard_requests=8,
        prompts={"source": source, "columns": columns, **prompts},
    )


def test_options_are_requests_of_their_own_and_each_is_answered_once(make_spec, settings):
    rows = [*ROWS, {**ROWS[0], "choices": ["one"]}, ROWS[1]]
    run_id = complete(asking(make_spec, rows, repeats=2), settings).run_id
    expected = 11 * 3 * 2 + 2
    assert query(settings, f"select expected_requests, state from runs where run_id = '{run_id}'") == [
        (expected, "completed")
    ]
    assert query(settings, "select count(*), count(distinct request_id) from requests") == [(expected, expected)]
    [integrity] = query(settings, "select columns(* exclude (run_id, is_sound)) from request_integrity")
    assert set(integrity) == {0}
    groups = query(
        settings,
        "select distinct list_sort(list(option_index)) from requests group by prompt_id, occurrence, repeat_index",
    )
    assert sorted(groups, key=str) == [([0, 1, 2],), ([None],)]
    found = query(settings, "select count(*), count(option_logprob), count(text), count(error_kind) from completions")
    assert found == [(expected, expected - 2, 0, 2)]
    assert query(settings, "select distinct options from prompts where options is not null and target = '4'") == [
        (["3", "4", "3!"],)
    ]
    [(answered, timed)] = query(
        settings,
        "select value, (select count(*) from stg_requests where e2e_s is not null) from metric_value "
        "where metric = 'answered_requests'",
    )
    assert (answered, timed) == (expected, expected - 2)


def test_a_tag_that_is_left_out_of_texts_is_refused(make_spec, settings, tiny_model):
    model = identify_model(str(tiny_model))
    with pytest.raises(SpecError, match=r"<\|end\|> is a special token.*skip_special_tokens to false"):
        Preparation(make_spec(engine=FAKE, reasoning={"close": "<|end|>"}), model)
    Preparation(make_spec(engine=FAKE, reasoning={"close": "<|end|>"}, sampling={"skip_special_tokens": False}), model)


@pytest.mark.parametrize("slow", [0, 3])
def test_preparation_names_a_row_that_takes_long_once(make_spec, tiny_model, monkeypatch, slow):
    lines: list[str] = []
    is_named = threading.Event()

    def warn(line: str) -> None:
        lines.extend([line] if line.startswith(f"Row {slow} has been rendering for 0.2 s.") else [])
        is_named.set() if lines else None

    def hold(question: str) -> str:
        assert question != ROWS[slow]["question"] or is_named.wait(60)
        return question

    monkeypatch.setattr(prepare, "SLOW_ROW_S", 0.2)
    monkeypatch.setitem(ENVIRONMENT.filters, "hold", hold)
    prompts = {"source": {"kind": "inline", "rows": ROWS}, "template": "{{ question|hold }}"}
    rows = Preparation(make_spec(engine=FAKE, prompts=prompts), identify_model(str(tiny_model)), warn=warn)
    assert len(list(rows)) == len(ROWS) and len(lines) == 1


def test_examples_that_changed_since_the_run_began_are_found_out(make_spec, settings):
    """Ids do not tell, as examples are not part of a prompt's; and of a hub's set there is no digest."""
    from test_resume import forget_counts

    def spec_of(answer: str) -> EvalSpec:
        few_shot = {"count": 1, "source": {"kind": "inline", "rows": [{"question": "0?", "answer": answer}]}}
        return make_spec(engine=FAKE, shard_requests=8, prompts={"limit": 20, "few_shot": few_shot})

    before = begin_and_vanish(spec_of("old"), settings, 2)
    for answer, changed in (("old", False), ("new", True)):
        forget_counts(before.run_dir)
        evaluation = begin_evaluation(spec_of("old"), settings)
        assert evaluation.run_id == before.run_id
        evaluation.spec = spec_of(answer)
        if changed:
            with pytest.raises(PromptsChangedError, match="requests part shard-000000 has other rows"):
                evaluation.prepare()
            evaluation.abandon("failed")
        else:
            assert evaluation.prepare().requests == 20
            evaluation.lock.release()


def spec_with(**values: Any) -> EvalSpec:
    return parse_spec({"model": "m", "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "a"}]}}, **values})


FORMS: dict[str, tuple[dict[str, Any], str | None]] = {
    "a schema": ({"json": {"type": "object"}}, None),
    "an expression that Python lacks": ({"regex": r"\p{L}+[0-9]"}, None),
    "no schema": ({"json": {"type": "objekt"}}, "not a valid JSON schema: at type, 'objekt' is not valid"),
    "a schema deep down": ({"json": {"properties": {"a": {"minimum": "3"}}}}, "at properties/a/minimum"),
    "no expression": ({"regex": "[a-"}, "not a valid regular expression: unterminated character set"),
    "a number": ({"regex": 5}, r"structured_outputs\.regex is 5, of another type"),
    "equal choices": ({"choice": ["a", "a"]}, "choices must be distinct"),
    "an empty choice": ({"choice": ["a", ""]}, "and not empty"),
    "two forms": ({"choice": ["a"], "regex": "b"}, "exactly one of"),
    "no form": ({}, "exactly one of"),
}


@pytest.mark.parametrize("case", FORMS)
def test_a_form_that_the_engine_would_refuse_is_refused(case):
    form, message = FORMS[case]
    with nullcontext() if message is None else pytest.raises(SpecError, match=message):
        assert spec_with(sampling={"structured_outputs": form}).sampling_defaults["structured_outputs"] == form
