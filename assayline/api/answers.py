"""What goes into an engine and comes out of it, for those who write loops of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assayline.records import Completion

Message = Mapping[str, Any]
"""As in OpenAI's chats: {"role": "user", "content": "..."}; content may have parts with pictures, sounds and videos."""

Content = str | Sequence[Message] | Sequence[int]
"""What is asked: a text, a chat, or token ids that are sent as they are."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt with more to it than its content."""

    content: Content
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Of this prompt alone, over what `generate` was given; all arguments of vllm.SamplingParams but n."""
    tag: Any = None
    """Anything of the caller's; comes back with each answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to one prompt, or why there is none: then `error` is set, and text and tokens are None."""

    index: int
    """Of the prompt, 0 for the first that was asked."""
    sample: int
    """0 to n - 1."""
    content: Content
    """What was asked."""
    tag: Any
    prompt_token_ids: list[int]
    """What the engine was given; empty where a server renders the chat, and where there was nothing to give."""
    text: str | None
    reasoning: str | None
    """What a model thought before it answered, where the engine was told that it reasons."""
    token_ids: list[int] | None
    logprobs: list[float] | None
    """Log-probability of each of `token_ids`, natural logarithm; None where `logprobs` was not asked for."""
    finish_reason: str | None
    """stop or length, as vLLM has them."""
    error: str | None
    """Why there is no answer, in a sentence."""
    completion: Completion
    """The whole row: times, cached tokens, which engine answered, all log-probabilities, the kind of error."""


def make_answer(index: int, sample: int, ask: Ask, prompt_token_ids: list[int], row: Completion) -> Answer:
    """An answer from an engine's row."""
    return Answer(
        index=index,
        sample=sample,
        content=ask.content,
        tag=ask.tag,
        prompt_token_ids=prompt_token_ids,
        text=row.text,
        reasoning=row.reasoning,
        token_ids=row.output_token_ids,
        logprobs=_read_logprobs(row),
        finish_reason=row.finish_reason,
        error=row.error_message if row.error_kind else None,
        completion=row,
    )


def _read_logprobs(row: Completion) -> list[float] | None:
    """Of the tokens that were chosen; the row has those that might have been, too."""
    if not row.logprobs or not row.output_token_ids:
        return None
    return [by_token[_key(by_token, token)] for by_token, token in zip(row.logprobs, row.output_token_ids, strict=True)]


def _key(by_token: Mapping[Any, float], token: int) -> Any:
    return token if token in by_token else str(token)
