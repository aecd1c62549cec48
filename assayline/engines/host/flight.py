"""A request in flight in the engine host, and what its outputs brought so far."""

from typing import Any

from assayline.engines.messages import Generate
from assayline.engines.reasoning import AnswerStops, split_reasoning, thinks
from assayline.records import Json, Request
from assayline.spec.engine import ReasoningSpec


class Live:
    """One request: one output at its end, or one per step where token times or an answer's stops are watched."""

    __slots__ = (
        "arrived",
        "cumulative_logprob",
        "finish_reason",
        "is_stopped",
        "logprobs",
        "media",
        "message",
        "prompt_logprobs",
        "reasoning",
        "stamps",
        "stop_reason",
        "stops",
        "texts",
        "token_ids",
    )

    def __init__(self, message: Generate, arrived: float, reasoning: ReasoningSpec | None = None) -> None:
        self.message = message
        self.arrived = arrived
        self.reasoning = reasoning if thinks(reasoning, message.request.rendered) else None
        self.stops: AnswerStops | None = None
        self.media: dict[str, Json] = {}
        """Columns that say what its media were, once they are prepared."""
        self.is_stopped = False
        """Whether one of `stops` was found, and the engine is to forget the request."""
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.stamps: list[float] = []
        self.logprobs: list[Any] = []
        self.prompt_logprobs: list[Any] = []
        self.cumulative_logprob: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def take(self, output: Any) -> None:
        """Adds one output. The stats object is shared with vLLM and changes, so its stamp is copied now."""
        part = output.outputs[0]
        self.texts.append(part.text)
        self.token_ids.extend(part.token_ids)
        self.stamps.extend([output.metrics.last_token_ts] * len(part.token_ids))
        self.logprobs.extend(part.logprobs or ())
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs  # streamed, only the first output has it
        self.cumulative_logprob = part.cumulative_logprob
        self.finish_reason = part.finish_reason
        self.stop_reason = part.stop_reason
        if self.stops and (stop := self.stops.feed(part.text, len(self.token_ids))) is not None:
            self.is_stopped, self.finish_reason, self.stop_reason = True, "stop", stop

    def answer(self) -> dict[str, Json]:
        """Columns of the completion that say what was answered."""
        request = self.message.request
        if request.option_tokens is not None:
            return _score_option(request, self.prompt_logprobs)
        text = self.stops.text if self.stops else "".join(self.texts)
        reasoning, text = split_reasoning(text, self.reasoning) if self.reasoning else (None, text)
        return {
            "text": text,
            "reasoning": reasoning,
            "output_token_ids": self.token_ids,
            "logprobs": [_plain_logprobs(position) for position in self.logprobs] or None,
            "cumulative_logprob": self.cumulative_logprob if self.logprobs else None,
            "prompt_logprobs": [_plain_logprobs(position) for position in self.prompt_logprobs] or None,
        }


def _score_option(request: Request, prompt_logprobs: list[Any]) -> dict[str, Json]:
    """Log-probability of the prompt's last tokens, which are an option. All positions of the prompt are given.

    Where the likeliest tokens were asked for beside the option's own, they are kept: they say whether it is greedy.
    """
    start = len(request.prompt_token_ids) - (request.option_tokens or 0)
    positions = prompt_logprobs[start:]
    ends = zip(request.prompt_token_ids[start:], positions, strict=True)
    wants_others = bool(request.sampling.get("prompt_logprobs"))
    return {
        "option_logprob": sum(float(position[token].logprob) for token, position in ends),
        "prompt_logprobs": [_plain_logprobs(position) for position in positions] if wants_others else None,
    }


def _plain_logprobs(position: Any) -> dict[str, float] | None:
    return None if position is None else {str(token): entry.logprob for token, entry in position.items()}
