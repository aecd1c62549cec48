"""Features of a spec that exclude each other: each row of the table is met by a spec that is refused for it."""

from typing import Any

import pytest

from assayline.errors import SpecError
from assayline.spec.conflicts import CONFLICTS
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

ROWS = {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}
TASK, BATCH = {"kind": "lm_eval", "task": "sums"}, {"kind": "openai_batch", "path": "b.jsonl"}
TRACE = {"kind": "trace", "format": "azure", "path": "t.csv"}
SYNTHETIC = {"kind": "synthetic", "count": 1, "prompt_tokens": 8, "output_tokens": 1}
RECORDED = {"kind": "sharegpt", "path": "t.json", "max_tokens": "recorded"}
ASYNC, SERVER, CHAT = {"backend": "async"}, {"backend": "server"}, {"backend": "server", "server": {"endpoint": "chat"}}
OPTIONS = {"scorers": ["loglikelihood"], "prompts.columns": {"options": "o"}}
CLOSED, OPEN = {"kind": "concurrency", "requests": 2}, {"kind": "poisson", "rate_per_s": 1}
EXAMPLES = {"count": 1}

REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("scorers loglikelihood", "another scorer", {**OPTIONS, "scorers": ["loglikelihood", "json"]}),
    ("scorers loglikelihood", "prompts.columns.options unset", {"scorers": ["loglikelihood"]}),
    ("scorers loglikelihood", "engine.backend server", {**OPTIONS, "engine": SERVER}),
    ("scorers loglikelihood", "prompts.turns each", {**OPTIONS, "prompts.turns": "each"}),
    ("scorers loglikelihood", "prompts.source lm_eval", {**OPTIONS, "prompts.source": TASK}),
    ("scorers loglikelihood", "prompts.source openai_batch", {**OPTIONS, "prompts.source": BATCH}),
    ("scorers loglikelihood", "output", {**OPTIONS, "output": {"choice": ["x"]}}),
    ("scorers loglikelihood", "reasoning", {**OPTIONS, "reasoning": {}}),
    ("scorers loglikelihood", "chat.special_tokens text", {**OPTIONS, "chat.special_tokens": "text"}),
    (
        "scorers loglikelihood",
        "engine.args.logprobs_mode raw_logits",
        {**OPTIONS, "engine": {"args": {"logprobs_mode": "raw_logits"}}},
    ),
    ("prompts.source lm_eval", "prompts.columns", {"prompts.source": TASK, "prompts.columns": {"target": "x"}}),
    ("prompts.source lm_eval", "prompts.template", {"prompts.source": TASK, "prompts.template": "x"}),
    ("prompts.source lm_eval", "prompts.few_shot", {"prompts.source": TASK, "prompts.few_shot": EXAMPLES}),
    ("prompts.source lm_eval", "prompts.shuffle_seed", {"prompts.source": TASK, "prompts.shuffle_seed": 0}),
    ("prompts.source lm_eval", "prompts.repeats", {"prompts.source": TASK, "prompts.repeats": 2}),
    ("prompts.source lm_eval", "chat.prefill", {"prompts.source": TASK, "chat.prefill": "So"}),
    ("prompts.source lm_eval", "sampling.n", {"prompts.source": TASK, "sampling.n": 2}),
    ("prompts.source lm_eval", "engine.server.endpoint chat", {"prompts.source": TASK, "engine": CHAT}),
    ("prompts.source lm_eval", "chat.special_tokens error", {"prompts.source": TASK, "chat.special_tokens": "error"}),
    ("prompts.source openai_batch", "prompts.columns", {"prompts.source": BATCH, "prompts.columns": {"target": "x"}}),
    ("prompts.source openai_batch", "prompts.template", {"prompts.source": BATCH, "prompts.template": "x"}),
    ("prompts.source openai_batch", "prompts.few_shot", {"prompts.source": BATCH, "prompts.few_shot": EXAMPLES}),
    ("prompts.source openai_batch", "prompts.repeats", {"prompts.source": BATCH, "prompts.repeats": 2}),
    ("prompts.source openai_batch", "chat.prefill", {"prompts.source": BATCH, "chat.prefill": "So"}),
    ("prompts.source openai_batch", "sampling.n", {"prompts.source": BATCH, "sampling.n": 2}),
    ("prompts.source synthetic", "prompts.columns", {"prompts.source": SYNTHETIC, "prompts.columns": {"target": "x"}}),
    ("prompts.source trace", "prompts.template", {"prompts.source": TRACE, "prompts.template": "x"}),
    ("prompts.source trace", "prompts.few_shot", {"prompts.source": TRACE, "prompts.few_shot": EXAMPLES}),
    ("prompts.source sharegpt", "prompts.few_shot", {"prompts.source": RECORDED, "prompts.few_shot": EXAMPLES}),
    ("prompts.template", "prompts.columns.messages", {"prompts.template": "x", "prompts.columns": {"messages": "m"}}),
    ("prompts.template", "prompts.columns.prompt", {"prompts.template": "x", "prompts.columns": {"prompt": "p"}}),
    ("prompts.columns.messages", "prompts.columns.prompt", {"prompts.columns": {"messages": "m", "prompt": "p"}}),
    ("prompts.turns each", "prompts.source synthetic", {"prompts.turns": "each", "prompts.source": SYNTHETIC}),
    ("prompts.turns each", "prompts.source.max_tokens", {"prompts.turns": "each", "prompts.source": RECORDED}),
    ("prompts.turns each", "prompts.few_shot", {"prompts.turns": "each", "prompts.few_shot": EXAMPLES}),
    ("prompts.turns each", "engine.order longest_first", {"prompts.turns": "each", "engine.order": "longest_first"}),
    (
        "prompts.turns each",
        "load.arrival poisson",
        {"prompts.turns": "each", "engine": ASYNC, "load": {"arrival": OPEN}},
    ),
    ("load", "engine.backend offline", {"load": {"arrival": CLOSED}}),
    ("load", "workers auto", {"load": {"arrival": CLOSED}, "engine": ASYNC, "workers": "auto"}),
    ("load.arrival trace without path", "prompts.source inline", {"load": {"arrival": {"kind": "trace"}}}),
    (
        "load.arrival trace without path",
        "prompts.shuffle_seed",
        {"load": {"arrival": {"kind": "trace"}}, "prompts.source": TRACE, "prompts.shuffle_seed": 1},
    ),
    (
        "engine.order longest_first",
        "load.arrival concurrency",
        {"engine": {**ASYNC, "order": "longest_first"}, "load": {"arrival": CLOSED, "max_requests": 3}},
    ),
    ("load.arrival all_at_once", "load.warmup_s", {"load": {"arrival": {"kind": "all_at_once"}, "warmup_s": 1}}),
    ("load.arrival all_at_once", "load.cooldown_s", {"load": {"arrival": {"kind": "all_at_once"}, "cooldown_s": 1}}),
    (
        "load.arrival concurrency",
        "load.stop_when_saturated",
        {"load": {"arrival": CLOSED, "stop_when_saturated": True}},
    ),
    ("engine.backend server", "prompts.source.images", {"engine": CHAT, "prompts.source": {**SYNTHETIC, "images": {}}}),
    ("engine.backend server", "prompts.source.audios", {"engine": CHAT, "prompts.source": {**SYNTHETIC, "audios": {}}}),
    (
        "engine.server.endpoint completions",
        "prompts.columns.images",
        {"engine": SERVER, "prompts.columns": {"images": "i"}},
    ),
    (
        "engine.server.endpoint completions",
        "prompts.columns.audios",
        {"engine": SERVER, "prompts.columns": {"audios": "i"}},
    ),
    (
        "engine.server.endpoint completions",
        "prompts.columns.videos",
        {"engine": SERVER, "prompts.columns": {"videos": "i"}},
    ),
    (
        "engine.server.url",
        "engine.args (max_num_seqs)",
        {"engine": {**SERVER, "server": {"url": "http://h/v1"}, "args": {"max_num_seqs": 8, "max_model_len": 9}}},
    ),
    (
        "a server started by this run",
        "engine.args.served_model_name",
        {"engine": {**SERVER, "args": {"served_model_name": "x"}}},
    ),
    ("engine.server.endpoint chat", "chat.template", {"engine": CHAT, "chat.template": "plain"}),
    ("engine.server.endpoint chat", "chat.prefill", {"engine": CHAT, "chat.prefill": "So"}),
    (
        "engine.server.endpoint chat",
        "chat.add_generation_prompt",
        {"engine": CHAT, "chat.add_generation_prompt": False},
    ),
    ("engine.server.endpoint chat", "chat.date", {"engine": CHAT, "chat.date": "2025-01-01"}),
    ("engine.server.endpoint chat", "chat.special_tokens", {"engine": CHAT, "chat.special_tokens": "text"}),
    ("engine.server.endpoint chat", "prompts.source trace", {"engine": CHAT, "prompts.source": TRACE}),
    ("engine.server.endpoint chat", "prompts.source.max_tokens", {"engine": CHAT, "prompts.source": RECORDED}),
    ("reasoning over a server", "sampling.stop", {"engine": SERVER, "reasoning": {}, "sampling.stop": ["."]}),
    (
        "output",
        "sampling.structured_outputs",
        {"output": {"regex": "x"}, "sampling.structured_outputs": {"regex": "x"}},
    ),
    ("reasoning without engine.args.reasoning_parser", "output", {"output": {"regex": "x"}, "reasoning": {}}),
]
ACCEPTED: list[dict[str, Any]] = [
    {**OPTIONS, "engine": {"args": {"logprobs_mode": "processed_logprobs"}}},
    {"prompts.source": TASK, "engine": SERVER},
    {
        "prompts.source": TRACE,
        "prompts.shuffle_seed": 1,
        "engine": ASYNC,
        "load.arrival": {"kind": "trace", "path": "u"},
    },
    {"engine": {**ASYNC, "order": "longest_first"}, "load": {"arrival": CLOSED}},
    {"prompts.turns": "each", "engine": ASYNC, "load": {"arrival": CLOSED}},
    {"engine": CHAT, "prompts.columns": {"images": "i"}, "chat.system": "Be brief."},
    {"engine": {"backend": "server", "server": {"url": "http://h/v1"}, "args": {"max_model_len": 9}}},
    {"reasoning": {}, "sampling.stop": ["."], "engine.args": {"reasoning_parser": "qwen3"}, "output": {"regex": "x"}},
    {"reasoning": {}, "output.regex": "x", "engine.args": {"structured_outputs_config": {"reasoning_parser": "x"}}},
]


def spec_of(fields: dict[str, Any]) -> EvalSpec:
    """A spec with these values by dotted field."""
    data: dict[str, Any] = {"model": "m", "prompts": {"source": ROWS}}
    for field, value in fields.items():
        *parents, name = field.split(".")
        part = data
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
    return parse_spec(data)


@pytest.mark.parametrize(("first", "second", "fields"), REFUSED)
def test_conflicting_features_are_refused_with_both_names_and_a_hint(
    first: str, second: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(fields)
    line = next(
        (line for line in str(caught.value).splitlines() if f"{first} cannot be used with {second}" in line), ""
    )
    assert "hint: " in line, caught.value


def test_each_conflict_has_a_spec_that_is_refused() -> None:
    told = ""
    for *_, fields in REFUSED:
        with pytest.raises(SpecError) as caught:
            spec_of(fields)
        told += str(caught.value)
    assert [reason for *_, reason in CONFLICTS if reason not in told] == []


@pytest.mark.parametrize("fields", ACCEPTED)
def test_features_that_go_together_are_accepted(fields: dict[str, Any]) -> None:
    assert spec_of(fields)


def test_all_conflicts_of_a_spec_are_listed() -> None:
    with pytest.raises(SpecError) as caught:
        spec_of({"prompts.source": TASK, "prompts.repeats": 2, "prompts.template": "x", "engine": CHAT})
    assert [line.partition(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "prompts.source lm_eval cannot be used with engine.server.endpoint chat",
        "prompts.source lm_eval cannot be used with prompts.template and prompts.repeats",
    ]
