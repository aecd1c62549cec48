"""Features of a spec that exclude each other, and fields without effect: two tables, checked when a spec is parsed and
when it is run.

A feature is a predicate on an EvalSpec, whose module imports this one: it returns the field path and value in use, or
None. To add a conflict, add a row to `CONFLICTS`; to add a field without effect, one to `UNUSED`. Bounds of a single
field are at the field; checks against the installed vLLM are in `checks.py`.
"""

from collections.abc import Callable
from typing import Any

from assayline.spec.load import LoadSpec

Feature = Callable[[Any], str | None]

TOKENIZER_ARGS = frozenset({"max_model_len", "tokenizer", "tokenizer_revision", "trust_remote_code"})
"""Engine arguments that apply to an external server too, because assayline renders the prompts."""


def list_conflicts(spec: Any) -> list[str]:
    """Return one line per pair of conflicting features in the spec."""
    return [
        f"{first} cannot be used with {second}: {reason}"
        for one, other, reason in CONFLICTS
        if (first := one(spec)) and (second := other(spec))
    ]


def list_unused(spec: Any) -> list[str]:
    """Return a warning per field of the spec that has no effect next to another one."""
    return [
        f"{first} has no effect with {second}. hint: {hint}."
        for one, other, hint in UNUSED
        if (first := one(spec)) and (second := other(spec))
    ]


def _when(name: str, is_used: Callable[[Any], object]) -> Feature:
    """Make a feature from its name, in which `{spec.…}` stands for the value of a field."""
    return lambda spec: name.format(spec=spec) if is_used(spec) else None


def _source(*kinds: str) -> Feature:
    return _when("prompts.source {spec.prompts.source.kind}", lambda spec: spec.prompts.source.kind in kinds)


def _arrival(is_used: Callable[[LoadSpec], bool]) -> Feature:
    return _when("load.arrival {spec.load.arrival.kind}", lambda spec: spec.load and is_used(spec.load))


def _given(*paths: str) -> Feature:
    """Make a feature of the fields that differ from their defaults."""
    return lambda spec: " and ".join(path for path in paths if _is_given(spec, path)) or None


def _is_given(part: Any, path: str) -> bool:
    *parents, name = path.split(".")
    for parent in parents:
        part = part.get(parent) if isinstance(part, dict) else getattr(part, parent, None)
    if isinstance(part, dict):
        return part.get(name) not in (None, "", [])
    field = getattr(type(part), "model_fields", {}).get(name)
    return field is not None and getattr(part, name) not in (None, "", field.get_default(call_default_factory=True))


def _foreign_args(spec: Any) -> str | None:
    names = sorted(set(spec.engine.args) - TOKENIZER_ARGS)
    return f"engine.args ({', '.join(names)})" if names else None


def _has_unparsed_reasoning(spec: Any) -> bool:
    args = spec.engine.args
    config = args.get("structured_outputs_config")
    parser = args.get("reasoning_parser") or (isinstance(config, dict) and config.get("reasoning_parser"))
    return spec.reasoning is not None and not parser


LIKELIHOOD = _when("scorers loglikelihood", lambda spec: spec.asks_for_options)
OTHER_SCORERS = _when("another scorer", lambda spec: {scorer.kind for scorer in spec.scorers or []} - {"loglikelihood"})
NO_OPTIONS = _when("prompts.columns.options unset", lambda spec: not spec.prompts.columns.options)
RAW_LOGITS = _when(
    "engine.args.logprobs_mode {spec.engine.args[logprobs_mode]}",
    lambda spec: str(spec.engine.args.get("logprobs_mode")).endswith("_logits"),
)
TURNS = _when("prompts.turns each", lambda spec: spec.prompts.asks_each_turn)
TASK, BATCH, EXACT_LENGTH = _source("lm_eval"), _source("openai_batch"), _source("synthetic", "trace")
RECORDED_LENGTH = _given("prompts.source.max_tokens")
MADE_MEDIA = _given("prompts.source.images", "prompts.source.audios")
MEDIA_COLUMNS = _given("prompts.columns.images", "prompts.columns.audios", "prompts.columns.videos")
READ = _source("reread")
MESSAGES = ("prompts.columns", "prompts.template", "prompts.few_shot")
EXAMPLES = _given("prompts.few_shot")
OWN_EXAMPLES = _when(
    "prompts.few_shot without source", lambda spec: spec.prompts.few_shot and spec.prompts.few_shot.source is None
)
RENDERING = _given("chat.template", "chat.prefill", "chat.special_tokens")
SPECIAL_TOKENS = _when("chat.special_tokens {spec.chat.special_tokens}", _given("chat.special_tokens"))
SERVED = _when("engine.backend server", lambda spec: spec.engine.is_served)
EXTERNAL = _when("engine.server.url", lambda spec: spec.engine.is_remote)
STARTED = _when("a server started by this run", lambda spec: spec.engine.starts_server)
CHAT = _when("engine.server.endpoint chat", lambda spec: spec.engine.sends_messages)
COMPLETIONS = _when(
    "engine.server.endpoint completions", lambda spec: spec.engine.is_served and not spec.engine.sends_messages
)
OFFLINE = _when("engine.backend {spec.engine.backend}", lambda spec: not spec.engine.is_streaming)
LONGEST_FIRST = _when("engine.order longest_first", lambda spec: spec.engine.order == "longest_first")
WORKERS = _when("workers {spec.workers}", lambda spec: spec.workers != 1)
LOAD = _given("load")
OPEN_LOOP = _arrival(lambda load: load.is_open_loop)
BURST = _arrival(lambda load: load.arrival.kind == "all_at_once")
FIXED_TIMES = _arrival(lambda load: not load.takes_any_order)
OWN_TRACE = _when("load.arrival trace without path", lambda spec: spec.load and spec.load.trace_speed is not None)
NO_TRACE = _when("prompts.source {spec.prompts.source.kind}", lambda spec: spec.prompts.source.kind != "trace")
SERVED_REASONING = _when("reasoning over a server", lambda spec: spec.reasoning and spec.engine.is_served)
UNPARSED_REASONING = _when("reasoning without engine.args.reasoning_parser", _has_unparsed_reasoning)
FORM = _given("sampling.structured_outputs")

ADAPTER = _given("adapter")
LORA = _when("engine.args.enable_lora", lambda spec: spec.engine.args.get("enable_lora"))
NO_ADAPTER = _when(
    "adapter unset and engine.args.default_mm_loras unset",
    lambda spec: not (spec.adapter or spec.engine.args.get("default_mm_loras")),
)

KEEP_ONE = "hint: remove one of the two"
NAME_ADAPTER = "set `model` to the base and `adapter` to the adapter's folder or hub id"
USE_ENGINE = "set engine.backend to offline or async"
USE_COMPLETIONS = "set engine.server.endpoint to completions"

CONFLICTS: list[tuple[Feature, Feature, str]] = [
    (LIKELIHOOD, OTHER_SCORERS, "it generates no text for the other scorer. hint: make two specs"),
    (
        LIKELIHOOD,
        NO_OPTIONS,
        "it compares given answers. hint: set prompts.columns.options to the column that lists them",
    ),
    (LIKELIHOOD, RAW_LOGITS, "it adds up log-probabilities. hint: remove logprobs_mode"),
    (LIKELIHOOD, SERVED, f"it needs the engine itself. hint: {USE_ENGINE}"),
    (LIKELIHOOD, TURNS, f"turns need generated answers. {KEEP_ONE}"),
    (LIKELIHOOD, TASK, f"the task decides whether likelihoods are computed. {KEEP_ONE}"),
    (LIKELIHOOD, BATCH, f"each line asks for generated text. {KEEP_ONE}"),
    (LIKELIHOOD, _given("sampling.structured_outputs", "reasoning"), f"no answer is generated. {KEEP_ONE}"),
    (LIKELIHOOD, SPECIAL_TOKENS, f"a whole prompt is read as one text. {KEEP_ONE}"),
    (TASK, SPECIAL_TOKENS, f"a whole prompt is read as one text. {KEEP_ONE}"),
    (TASK, CHAT, f"a task writes whole prompts, which this endpoint does not take. hint: {USE_COMPLETIONS}"),
    (
        TASK,
        _given(*MESSAGES, "prompts.shuffle_seed", "prompts.repeats", "chat.prefill", "sampling.n"),
        "the task decides that. hint: remove it; prompts.source.num_fewshot sets the number of examples",
    ),
    (
        BATCH,
        _given(*MESSAGES, "prompts.repeats", "chat.prefill", "sampling.n"),
        "the body of each line decides that. hint: remove it",
    ),
    (EXACT_LENGTH, _given(*MESSAGES), "its prompts are generated. hint: remove it, or use a file"),
    (READ, _given(*MESSAGES, "sampling"), f"stored answers are read as they are. {KEEP_ONE}"),
    (READ, CHAT, f"it sends token ids, which this endpoint does not take. hint: {USE_COMPLETIONS}"),
    (_source("sharegpt"), EXAMPLES, "its conversations have no target. hint: remove few_shot"),
    (_source("run", "pairs"), OWN_EXAMPLES, "its rows are read only once. hint: set prompts.few_shot.source"),
    (
        _given("prompts.template"),
        _given("prompts.columns.messages", "prompts.columns.prompt"),
        f"each defines the messages. {KEEP_ONE}",
    ),
    (
        _given("prompts.columns.messages"),
        _given("prompts.columns.prompt"),
        f"each defines the messages. {KEEP_ONE}",
    ),
    (
        TURNS,
        _source("lm_eval", "openai_batch", "synthetic", "trace"),
        "its rows are whole prompts, not conversations. hint: remove prompts.turns, or use a source of kind sharegpt "
        "or one with a column of messages",
    ),
    (TURNS, RECORDED_LENGTH, "it is the length of one answer. hint: use sampling.max_tokens, which is for all turns"),
    (TURNS, EXAMPLES, f"what precedes a question is what the model itself answered. {KEEP_ONE}"),
    (TURNS, LONGEST_FIRST, "turns are sent in the order of their conversation. hint: remove engine.order"),
    (TURNS, OPEN_LOOP, "a turn is sent when the one before is answered. hint: use arrival concurrency"),
    (
        LOAD,
        OFFLINE,
        "it takes requests as fast as it can and has no arrival pattern. hint: set engine.backend to async or server",
    ),
    (LOAD, WORKERS, "one worker keeps the pattern. hint: set workers to 1; a server may have any number of GPUs"),
    (
        LONGEST_FIRST,
        FIXED_TIMES,
        "a load that sets the times of requests, or sends only some of them, would measure others. hint: remove "
        "engine.order, or use arrival concurrency without limits",
    ),
    (OWN_TRACE, NO_TRACE, "that source has no times. hint: set load.arrival.path, or use a source of kind trace"),
    (
        OWN_TRACE,
        _given("prompts.shuffle_seed"),
        "requests are sent in the order of their trace. hint: remove shuffle_seed, or set load.arrival.path",
    ),
    (BURST, _given("load.warmup_s", "load.cooldown_s"), "everything is sent at one moment. hint: remove it"),
    (SERVED, MADE_MEDIA, f"synthetic media are for the engine itself. hint: {USE_ENGINE}"),
    (COMPLETIONS, MEDIA_COLUMNS, "this endpoint takes text only. hint: set engine.server.endpoint to chat"),
    (EXTERNAL, _foreign_args, f"they configure an engine that is started here. {KEEP_ONE}"),
    (LORA, NO_ADAPTER, f"no request names an adapter, so the base would answer. hint: {NAME_ADAPTER}"),
    (
        ADAPTER,
        EXTERNAL,
        "a running server has loaded its adapters itself. hint: set `model` to the base and engine.server.model to the "
        "server's name for the adapter",
    ),
    (STARTED, _given("engine.args.served_model_name"), "it sets the name. hint: use engine.server.model"),
    (CHAT, RENDERING, f"the server renders with its own template. hint: remove it, or {USE_COMPLETIONS}"),
    (CHAT, EXACT_LENGTH, f"token ids are made, which this endpoint does not take. hint: {USE_COMPLETIONS}"),
    (CHAT, RECORDED_LENGTH, f"the model's tokenizer, which counts them, is not loaded. hint: {USE_COMPLETIONS}"),
    (
        SERVED_REASONING,
        _given("sampling.stop"),
        f"a server looks for stop texts in the reasoning as well. hint: remove one of the two, or {USE_ENGINE}",
    ),
    (
        UNPARSED_REASONING,
        FORM,
        "vLLM would apply the form to the reasoning too. hint: set engine.args.reasoning_parser to vLLM's name for "
        "this model's, such as qwen3",
    ),
]

CONTINUOUS = _when("engine.mode continuous", lambda spec: spec.engine.mode == "continuous")
BARRIER = _when("engine.mode barrier", lambda spec: spec.engine.mode == "barrier")
UNSERVED = _when("engine.backend {spec.engine.backend}", lambda spec: not spec.engine.is_served)
NO_TEMPLATE = _when(
    "prompts.source.apply_chat_template false",
    lambda spec: spec.prompts.task and not spec.prompts.task.apply_chat_template,
)

UNUSED: list[tuple[Feature, Feature, str]] = [
    (_given("engine.batch_size"), CONTINUOUS, "set engine.mode to barrier, or use engine.max_concurrency"),
    (_given("engine.max_concurrency"), BARRIER, "set engine.batch_size"),
    (_given("engine.server"), UNSERVED, "set engine.backend to server"),
    (_given("engine.device", "engine.env", "engine.python"), EXTERNAL, "set it where the server is started"),
    (_given("sampling"), LIKELIHOOD, "remove it; no text is generated"),
    (_given("chat.template", "chat.kwargs"), NO_TEMPLATE, "set prompts.source.apply_chat_template to true"),
    (
        _given("sampling.structured_outputs.whitespace_pattern"),
        _when("vLLM", lambda spec: not spec.engine.is_remote),
        "use engine.args.structured_outputs_config: {disable_any_whitespace: true}",
    ),
]
