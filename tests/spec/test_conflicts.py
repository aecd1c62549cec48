"""Features of a spec that exclude each other: one refused spec per row of the table, in its order."""

from typing import Any

import pytest

from assayline.errors import SpecError
from assayline.spec.conflicts import CONFLICTS, UNUSED, list_unused
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

ROWS = {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}
TASK = {"prompts.source": {"kind": "lm_eval", "task": "sums"}}
MADE = {"prompts.source": {"kind": "synthetic", "count": 1, "prompt_tokens": 8, "output_tokens": 1}}
TRACE = {"prompts.source": {"kind": "trace", "path": "t.csv"}}
RECORDED = {"prompts.source": {"kind": "sharegpt", "path": "t.json", "max_tokens": "recorded"}}
BATCH = {"prompts.source": {"kind": "openai_batch", "path": "b.jsonl"}}
ANSWERS = {"prompts.source": {"kind": "run", "run": "r"}}
READ = {"prompts.source": {"kind": "reread", "run": "r"}}
LIKELIHOOD = {"scorers": ["loglikelihood"], "prompts.columns.options": "o"}
TURNS, EXAMPLES = {"prompts.turns": "each"}, {"prompts.few_shot.count": 1}
MESSAGES = {"prompts.columns.target": "x", "prompts.template": "x", **EXAMPLES}
ASYNC, SERVER = {"engine.backend": "async"}, {"engine.backend": "server"}
CHAT, URL = {**SERVER, "engine.server.endpoint": "chat"}, {**SERVER, "engine.server.url": "http://h/v1"}
BURST, TIMES = {**ASYNC, "load.arrival.kind": "all_at_once"}, {**ASYNC, "load.arrival.kind": "trace"}
CLOSED = {**ASYNC, "load.arrival": {"kind": "concurrency", "requests": 2}}
OPEN = {**ASYNC, "load.arrival": {"kind": "poisson", "rate_per_s": 1}}
REGEX = {"sampling.structured_outputs": {"regex": "x"}}

MESSAGE_FIELDS = "prompts.columns and prompts.template and prompts.few_shot"
RENDERING = "chat.template and chat.prefill and chat.special_tokens"
MEDIA_FIELDS = ("images", "audios", "videos")

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("another scorer", {**LIKELIHOOD, "scorers": ["loglikelihood", "json"]}),
    ("prompts.columns.options unset", {"scorers": ["loglikelihood"]}),
    ("engine.args.logprobs_mode raw_logits", {**LIKELIHOOD, "engine.args.logprobs_mode": "raw_logits"}),
    ("engine.backend server", {**LIKELIHOOD, **SERVER}),
    ("prompts.turns each", {**LIKELIHOOD, **TURNS}),
    ("prompts.source lm_eval", {**LIKELIHOOD, **TASK}),
    ("prompts.source openai_batch", {**LIKELIHOOD, **BATCH}),
    ("sampling.structured_outputs and reasoning", {**LIKELIHOOD, **REGEX, "reasoning": {}}),
    ("chat.special_tokens text", {**LIKELIHOOD, "chat.special_tokens": "text"}),
    ("chat.special_tokens error", {**TASK, "chat.special_tokens": "error"}),
    ("engine.server.endpoint chat", {**TASK, **CHAT}),
    (
        f"{MESSAGE_FIELDS} and prompts.shuffle_seed and prompts.repeats and chat.prefill and sampling.n",
        {**TASK, **MESSAGES, "prompts.shuffle_seed": 0, "prompts.repeats": 2, "chat.prefill": "So", "sampling.n": 2},
    ),
    (
        f"{MESSAGE_FIELDS} and prompts.repeats and chat.prefill and sampling.n",
        {**BATCH, **MESSAGES, "prompts.repeats": 2, "chat.prefill": "So", "sampling.n": 2},
    ),
    (MESSAGE_FIELDS, {**MADE, **MESSAGES}),
    (f"{MESSAGE_FIELDS} and sampling", {**READ, **MESSAGES, "sampling.top_k": 1}),
    ("engine.server.endpoint chat", {**READ, **CHAT}),
    ("prompts.few_shot", {**RECORDED, **EXAMPLES}),
    ("prompts.few_shot without source", {**ANSWERS, **EXAMPLES}),
    ("prompts.columns.prompt", {"prompts.template": "x", "prompts.columns.prompt": "p"}),
    ("prompts.columns.prompt", {"prompts.columns": {"messages": "m", "prompt": "p"}}),
    ("prompts.source trace", {**TURNS, **TRACE}),
    ("prompts.source.max_tokens", {**TURNS, **RECORDED}),
    ("prompts.few_shot", {**TURNS, **EXAMPLES}),
    ("engine.order longest_first", {**TURNS, "engine.order": "longest_first"}),
    ("load.arrival poisson", {**TURNS, **OPEN}),
    ("engine.backend offline", {**CLOSED, "engine.backend": "offline"}),
    ("workers auto", {**CLOSED, "workers": "auto"}),
    ("load.arrival concurrency", {**CLOSED, "engine.order": "longest_first", "load.max_requests": 3}),
    ("prompts.source inline", TIMES),
    ("prompts.shuffle_seed", {**TIMES, **TRACE, "prompts.shuffle_seed": 1}),
    ("load.warmup_s and load.cooldown_s", {**BURST, "load.warmup_s": 1, "load.cooldown_s": 1}),
    (
        "prompts.source.images and prompts.source.audios",
        {**CHAT, "prompts.source": {**MADE["prompts.source"], "images": {}, "audios": {}}},
    ),
    (
        " and ".join(f"prompts.columns.{name}" for name in MEDIA_FIELDS),
        {**SERVER, **{f"prompts.columns.{name}": "c" for name in MEDIA_FIELDS}},
    ),
    ("engine.args (max_num_seqs)", {**URL, "engine.args": {"max_num_seqs": 8, "max_model_len": 9}}),
    ("adapter unset and engine.args.default_mm_loras unset", {"engine.args.enable_lora": True}),
    ("engine.server.url", {**URL, "adapter": "a"}),
    ("engine.args.served_model_name", {**SERVER, "engine.args.served_model_name": "x"}),
    (
        RENDERING,
        {
            **CHAT,
            "chat": {"template": "plain", "prefill": "So"},
            "chat.special_tokens": "text",
        },
    ),
    ("prompts.source trace", {**CHAT, **TRACE}),
    ("prompts.source.max_tokens", {**CHAT, **RECORDED}),
    ("sampling.stop", {**SERVER, "reasoning": {}, "sampling.stop": ["."]}),
    ("sampling.structured_outputs", {**REGEX, "reasoning": {}}),
]
ACCEPTED: list[dict[str, Any]] = [
    {**LIKELIHOOD, "engine.args.logprobs_mode": "processed_logprobs"},
    {**TASK, **SERVER},
    {**TRACE, **TIMES, "prompts.shuffle_seed": 1, "load.arrival.path": "u"},
    {**CLOSED, "engine.order": "longest_first"},
    {**CLOSED, **TURNS},
    {**CHAT, "prompts.columns.images": "i", "chat.system": "Be brief."},
    {**URL, "engine.args.max_model_len": 9},
    {"engine.args.enable_lora": True, "engine.args.default_mm_loras": {"audio": "adapter"}},
    {"engine.args.enable_lora": True, "adapter": "a"},
    {**REGEX, "reasoning": {}, "sampling.stop": ["."], "engine.args.reasoning_parser": "qwen3"},
    {**REGEX, "reasoning": {}, "engine.args.structured_outputs_config.reasoning_parser": "qwen3"},
]


def spec_of(fields: dict[str, Any]) -> EvalSpec:
    """A spec with these values by dotted field."""
    data: dict[str, Any] = {"model": "m", "prompts": {"source": ROWS}}
    for field, value in fields.items():
        *parents, name = field.split(".")
        part = data
        for parent in parents:
            part[parent] = dict(part.get(parent, {}))
            part = part[parent]
        part[name] = value
    return parse_spec(data)


@pytest.mark.parametrize(("row", "case"), list(zip(CONFLICTS, REFUSED, strict=True)), ids=[name for name, _ in REFUSED])
def test_conflicting_features_are_refused(row, case):
    second, fields = case
    with pytest.raises(SpecError) as caught:
        spec_of(fields)
    assert f" cannot be used with {second}: {row[2]}" in str(caught.value) and "hint: " in row[2]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_features_that_go_together_are_accepted(fields):
    assert spec_of(fields)


BARRIER = {"engine.mode": "barrier"}
WITHOUT_EFFECT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"engine.batch_size": 8}, BARRIER),
    ({**BARRIER, "engine.max_concurrency": 8}, {"engine.mode": "continuous"}),
    ({"engine.server.endpoint": "completions", "engine.server.url": "http://h/v1"}, {"engine.backend": "server"}),
    (
        {"engine.backend": "server", "engine.server.url": "http://h/v1", "engine.device": "cpu"},
        {"engine.server.url": None},
    ),
    ({**LIKELIHOOD, "sampling": {"temperature": 0.5}}, {"scorers": ["exact_match"]}),
    ({**TASK, "chat.template": "plain"}, {"prompts.source": {**TASK["prompts.source"], "apply_chat_template": True}}),
    (
        {"sampling.structured_outputs": {"json": {}, "whitespace_pattern": "[ ]?"}},
        {"sampling.structured_outputs": {"json": {}}},
    ),
]
"""By row of UNUSED: fields without effect, and changes with which the field has one or is gone."""


@pytest.mark.parametrize(
    ("row", "fields", "change"), [(row, *case) for row, case in zip(UNUSED, WITHOUT_EFFECT, strict=True)]
)
def test_list_unused_warns_of_a_field_without_effect_only_where_it_has_none(row, fields, change):
    (warning,) = list_unused(spec_of(fields))
    assert " has no effect with " in warning and warning.endswith(f" hint: {row[2]}.")
    assert not list_unused(spec_of({**fields, **change}))


def test_all_conflicts_of_a_spec_are_listed():
    with pytest.raises(SpecError) as caught:
        spec_of({**TASK, **CHAT, "prompts.repeats": 2})
    assert [line.partition(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "prompts.source lm_eval cannot be used with engine.server.endpoint chat",
        "prompts.source lm_eval cannot be used with prompts.repeats",
    ]
