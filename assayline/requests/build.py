"""Turn prompts into requests: repeats, options, sampling, rendering, and the checks that need no engine.

Every prompt gives exactly `repeats_per_prompt` requests, times its options if their likelihood is computed, times its
turns if they are sent one by one. A bad row counts once, since neither number is known. Each request either goes to an
engine or gets its error here: vLLM fails a whole call for one bad prompt, so errors are found early where possible. The
engine's own check remains the authority. Later turns of a conversation have no prompt yet (`run/order.py`
renders them).

Where a prompt ends and its option begins is decided as in lm-evaluation-harness (`TemplateLM._encode_pair` of
lm_eval/api/model.py): white space at the prompt's end belongs to the answer, since tokenizers join a blank with the
word that follows; both are encoded together, and the answer's tokens are those that come after as many as the prompt
alone has. So a token that spans the boundary counts as the prompt's. The option is put right behind the rendered
prompt, as it stands in its column: without a chat template, let the prompt's template end in a blank ("Answer: ").
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assayline.digests import digest_text
from assayline.errors import SpecError
from assayline.prompts import BadRow, RowError
from assayline.records import Completion, Json, Prompt, Request
from assayline.requests.chat import Rendered, Renderer
from assayline.requests.model_config import list_kinds
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import MOST_REPEATS

WORKER = "prepare"
"""Named as the worker of errors that no engine has seen."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """Requests of one prompt: for an engine, or with an error each."""

    prompt: Prompt
    requests: list[Request]
    """All of the prompt's requests, by repeat_index, then option_index or turn_index. Those with an error have neither
    token ids nor messages."""
    errors: list[Completion] = field(default_factory=list)
    """Empty, or one per request in the same order: what is wrong with a prompt is wrong with each repeat."""
    cut_in: str | None = None
    """The task whose prompt was cut to fit the context, if this one was."""

    @property
    def ready(self) -> list[Request]:
        """The requests that an engine can be given."""
        return [] if self.errors else self.requests


def build_requests(spec: EvalSpec, prompts: Iterable[Prompt | BadRow], renderer: Renderer) -> Iterator[PreparedPrompt]:
    """Yield one PreparedPrompt per prompt, in order, reading no prompt ahead.

    Raises SpecError at once if `sampling.n` or `sampling.seed` is not a whole number.
    """
    repeats = repeats_per_prompt(spec)
    _check_seed(spec.sampling, SpecError)
    return (_prepare(spec, repeats, prompt, renderer) for prompt in prompts)


def repeats_per_prompt(spec: EvalSpec) -> int:
    """prompts.repeats × sampling.n. `n` becomes repeats, since vLLM gives the n answers of a request one timing."""
    n = spec.sampling.get("n")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise SpecError(f"sampling.n is {n!r}, expected a whole number of at least 1.")
    repeats = spec.prompts.repeats * (n or 1)
    if repeats > MOST_REPEATS:
        raise SpecError(
            f"prompts.repeats times sampling.n is {repeats}, more than the {MOST_REPEATS} that a prompt can be asked. "
            "hint: lower one of them."
        )
    return repeats


def make_request_id(
    prompt_id: str, occurrence: int, repeat_index: int, option_index: int | None = None, turn_index: int | None = None
) -> str:
    """Return the id of a prompt's nth repeat, option or turn, which is the same in every run."""
    option = "" if option_index is None else f"/{option_index}"
    turn = "" if turn_index is None else f"/turn-{turn_index}"
    return digest_text(f"{prompt_id}/{occurrence}/{repeat_index}{option}{turn}")


def _prepare(spec: EvalSpec, repeats: int, item: Prompt | BadRow, renderer: Renderer) -> PreparedPrompt:
    """Return the requests of a prompt. If one of its options cannot be asked for, none is: the others say nothing."""
    prompt = item.prompt if isinstance(item, BadRow) else item
    repeats = (prompt.body and prompt.body.samples) or repeats
    sampling, options = spec.sampling_defaults, (prompt.options or []) if spec.asks_for_options else []
    rendered: list[Rendered] = [Rendered("", [])]
    try:
        if isinstance(item, BadRow):
            raise RowError(item.message, item.kind)
        if not spec.asks_for_options:
            sampling = _overlay(sampling, prompt.sampling)
        rendered = [_render(prompt, renderer)]
        for one in render_options(rendered[0], options, renderer) if spec.asks_for_options else rendered[:]:
            rendered.append(one)
            if one.messages is None:
                check_length(len(one.token_ids), renderer.max_model_len, sampling.get("min_tokens"))
    except RowError as error:
        # Without ids a request can be stored, but not be run by mistake.
        text = rendered[0].text
        unasked = [Rendered(text + option, [], option=option) for option in options] or [Rendered(text, [])]
        requests = _repeat(prompt, unasked, _overlay(sampling, {}), repeats)
        prompt_tokens = max(len(one.token_ids) for one in rendered) or None
        errors = [error_of(request, error, None if request.turn_index else prompt_tokens) for request in requests]
        return PreparedPrompt(prompt, requests, errors)
    return PreparedPrompt(prompt, _repeat(prompt, rendered[1:], sampling, repeats))


def render_options(prompt: Rendered, options: list[str], renderer: Renderer) -> Iterator[Rendered]:
    """Each option behind the prompt. Raises RowError for a prompt without text or an option that has no tokens."""
    context = prompt.text.rstrip()
    prompt_tokens = len(prompt.token_ids if context == prompt.text else renderer.encode(context))
    if prompt_tokens == 0:
        raise RowError(
            "The prompt has no tokens before its options, expected at least one: the "
            "likelihood of a first token is not known. Is its text empty?",
            "empty_prompt",
        )
    for number, option in enumerate(options, start=1):
        text = prompt.text + option
        token_ids = renderer.encode(text)
        if len(token_ids) <= prompt_tokens:
            raise RowError(
                f"Option {number}, {option!r:.80}, adds no token to the prompt, so that it has "
                "no likelihood of its own. Begin it with a blank, or end the prompt with one."
            )
        yield Rendered(text, token_ids, option=option, option_tokens=len(token_ids) - prompt_tokens)


def _repeat(prompt: Prompt, rendered: list[Rendered], sampling: Mapping[str, Any], repeats: int) -> list[Request]:
    numbered = [(None if one.option is None else number, one) for number, one in enumerate(rendered)]
    requests = [
        Request(
            request_id=make_request_id(prompt.prompt_id, prompt.occurrence, repeat_index, option_index),
            prompt_id=prompt.prompt_id,
            occurrence=prompt.occurrence,
            repeat_index=repeat_index,
            prompt_token_ids=one.token_ids,
            sampling=seed_repeat(sampling, repeat_index),
            rendered=one.text or None,
            option_index=option_index,
            option=one.option,
            option_tokens=one.option_tokens,
            messages=one.messages,
            media=prompt.media,
            due_offset_s=prompt.due_offset_s,
        )
        for repeat_index in range(repeats)
        for option_index, one in numbered
    ]
    if prompt.turn_sizes is None:
        return requests
    return [turn for request in requests for turn in _spread_turns(prompt, prompt.turn_sizes, request)]


def _spread_turns(prompt: Prompt, turn_sizes: list[int], first: Request) -> Iterator[Request]:
    """Yield a request per turn. If the first one cannot be sent, none can."""
    can_be_asked = bool(first.prompt_token_ids or first.messages)
    end = 0
    for turn_index, size in enumerate(turn_sizes):
        added, end = prompt.messages[end : end + size], end + size
        known = first if turn_index == 0 else replace(first, prompt_token_ids=[], rendered=None, messages=None)
        yield replace(
            known,
            request_id=make_request_id(prompt.prompt_id, prompt.occurrence, first.repeat_index, turn_index=turn_index),
            turn_index=turn_index,
            turns=len(turn_sizes),
            turn_messages=added if can_be_asked else None,
            media=(prompt.media or [])[: len(list_kinds(prompt.messages[:end]))] or None,
        )


def _overlay(sampling: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec's sampling with the row's over it. Raises RowError for overrides that cannot be per row.

    vLLM's own default of 16 tokens must not apply: without `max_tokens`, None says "the room left in the context".
    """
    if "n" in overrides:
        raise RowError(
            "The row's sampling sets n, which would change how many requests the run has. hint: set "
            "sampling.n or prompts.repeats in the spec."
        )
    _check_seed(overrides, lambda message: RowError(f"The row's {message}"))
    overlaid = {"max_tokens": None, **sampling, **overrides}
    overlaid.pop("n", None)
    return overlaid


def _check_seed(sampling: Mapping[str, Any], error: Any) -> None:
    seed = sampling.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise error(f"sampling.seed is {seed!r}, expected a whole number.")


def seed_repeat(sampling: Mapping[str, Any], repeat_index: int) -> dict[str, Any]:
    """Return the sampling with a seed per repeat, as one seed would repeat one answer. vLLM reads -1 as "no seed"."""
    seed = sampling.get("seed")
    if seed in (None, -1):
        return dict(sampling)
    own = seed + repeat_index
    return {**sampling, "seed": own + 1 if seed < -1 <= own else own}


def _render(prompt: Prompt, renderer: Renderer) -> Rendered:
    if prompt.prompt_token_ids is not None:
        ids = prompt.prompt_token_ids
        if prompt.media:
            ids = renderer.encode_media(prompt.messages) + ids
        return Rendered(" ".join(map(read_text, prompt.messages)), ids)
    asked = prompt.messages[: prompt.turn_sizes[0]] if prompt.turn_sizes else prompt.messages
    return renderer.render(asked, prompt.body)


def read_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, without its media."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(part["text"] for part in content if part["type"] == "text")
    return str(content or "")


def check_length(tokens: int, max_model_len: int | None, min_tokens: Any = None) -> None:
    """Raise RowError for a prompt that leaves no room in the context for an answer, or has no tokens."""
    if tokens == 0:
        raise RowError("The prompt has no tokens, expected at least one. Is its text empty?", "empty_prompt")
    least = min_tokens if isinstance(min_tokens, int) and min_tokens > 0 else 1  # a row may say anything here
    if max_model_len is not None and tokens + least > max_model_len:
        raise RowError(
            f"The prompt has {tokens} tokens, but the context is {max_model_len} tokens "
            f"(max_model_len), at least {'one' if least == 1 else least} of them for the answer. Shorten the "
            "prompt, or raise engine.args.max_model_len if the model allows.",
            "prompt_too_long",
        )


def error_of(request: Request, error: RowError, prompt_tokens: int | None = None) -> Completion:
    """Return the error row of a request that is not sent."""
    return Completion(
        request_id=request.request_id,
        worker=WORKER,
        engine_generation=0,
        window_requests=0,
        prompt_tokens=prompt_tokens,
        error_kind=error.kind,
        error_message=str(error),
    )


MIN_WARM_UP_TOKENS = 32
"""A first prefill of a few tokens kills vLLM's CPU worker on AMX machines (SIGILL); 32 is safe everywhere."""

WARM_UP_OUTPUT_TOKENS = 4


def write_warm_up(
    first: Sequence[Request], sampling: Mapping[str, Json], worker: str, max_model_len: int | None
) -> tuple[Request, int]:
    """Return a warm-up request, and the number of leading tokens that the `first` requests share.

    It belongs to no run, compiles what is compiled late, and primes the prefix that prompts share. `sampling` is the
    spec's; `max_model_len` in tokens, None where a server does not say.
    """
    one = first[0]
    prefix = [] if one.media else shared_prefix([request.prompt_token_ids for request in first])
    messages = one.messages  # a server renders messages itself
    if one.media:
        # Text alone: a placeholder without its medium can kill an engine, and what sees has run when it started. The
        # smallest id is of a byte, or begins the text; placeholders are among the last.
        ids = [min(one.prompt_token_ids, default=0)] * MIN_WARM_UP_TOKENS if messages is None else []
        messages = messages and [{"role": "user", "content": "Hello"}]
    else:
        room = None if max_model_len is None else max_model_len - WARM_UP_OUTPUT_TOKENS - 1
        ids = (prefix + one.prompt_token_ids[:1] * (MIN_WARM_UP_TOKENS - len(prefix)))[:room]
    request = Request(
        request_id=f"warm-up-{worker}",
        prompt_id="",
        occurrence=0,
        repeat_index=0,
        prompt_token_ids=ids,
        sampling={name: value for name, value in sampling.items() if name != "min_tokens"}
        | {"max_tokens": WARM_UP_OUTPUT_TOKENS},
        messages=messages,
    )
    return request, len(prefix)


def shared_prefix(prompts: list[list[int]]) -> list[int]:
    """Return the longest common prefix of two or more prompts; empty for a single one."""
    if len(prompts) < 2:
        return []
    low, high = min(prompts), max(prompts)
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]
