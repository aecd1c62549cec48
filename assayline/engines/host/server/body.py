"""A request as the body of an HTTP call: which of its sampling parameters a server knows, and how it names them.

A spec's `sampling` has vLLM's names and vLLM's meaning. A server with vLLM's extensions takes nearly all of them, and
gets those that are unset too, as a model's generation_config.json would otherwise change them behind the spec's back.
Any other server takes what OpenAI's interface has, and a name beyond that is an error rather than silently without
effect.
"""

from dataclasses import dataclass
from typing import Any

from assayline.errors import SpecError
from assayline.records import Json, Request

OPENAI = frozenset(
    {"frequency_penalty", "logit_bias", "max_tokens", "presence_penalty", "seed", "stop", "temperature", "top_p"}
)
EXTENSIONS = frozenset(
    {
        "allowed_token_ids", "bad_words", "ignore_eos", "include_stop_str_in_output", "logprobs", "min_p", "min_tokens",
        "repetition_detection", "repetition_penalty", "skip_special_tokens", "spaces_between_special_tokens",
        "stop_token_ids", "structured_outputs", "thinking_token_budget", "top_k",
    }
)  # fmt: skip
"""Parameters of vllm.SamplingParams that vLLM's server takes beyond OpenAI's."""

NEUTRAL: dict[str, Json] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
"""What vllm.SamplingParams takes for unset, where a server might know something else."""

ENDPOINT_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
"""Below the base URL."""


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """Writes bodies for one endpoint of one server."""

    endpoint: str
    """completions or chat."""
    model: str
    """As the server names it."""
    has_extensions: bool
    """Whether it takes vLLM's fields."""
    max_model_len: int | None
    """The context in tokens, where the server says."""
    chat_kwargs: dict[str, Json]
    """Variables of the chat template, where the server renders."""

    @property
    def path(self) -> str:
        """Where requests go, below the base URL."""
        return ENDPOINT_PATHS[self.endpoint]

    def check(self, sampling: dict[str, Json]) -> None:
        """Raises SpecError for parameters that the server does not take."""
        self._list_parameters(sampling)

    def check_room(self, request: Request) -> None:
        """Raises SpecError where max_tokens is to be the room that is left, and nobody knows how much that is."""
        is_open = self.endpoint == "completions" and request.sampling.get("max_tokens") is None
        if is_open and self.max_model_len is None:
            raise SpecError(
                "The server does not say how long its model's context is, so that the room for an answer is not known. "
                "Set sampling.max_tokens."
            )

    def write(self, request: Request) -> dict[str, Json]:
        """The body of one request. Raises SpecError for a parameter that the server does not take."""
        body: dict[str, Json] = {
            "model": self.model,
            **self._list_parameters(request.sampling),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.has_extensions:
            body["return_token_ids"] = True
        if self.endpoint == "completions" and request.media:
            raise SpecError(
                "Images, sounds and videos can be sent to chat completions alone. Set engine.server.endpoint to chat."
            )
        if self.endpoint == "completions":
            body["prompt"] = request.prompt_token_ids
            room = (self.max_model_len or 0) - len(request.prompt_token_ids)
            body.setdefault("max_tokens", max(1, room))  # the server's own default is 16
        else:
            body["messages"] = request.messages
            if self.chat_kwargs:
                body["chat_template_kwargs"] = self.chat_kwargs
        return body

    def _list_parameters(self, sampling: dict[str, Json]) -> dict[str, Json]:
        given = {name: value for name, value in sampling.items() if value is not None and name != "n"}
        if given.get("seed") == -1:
            del given["seed"]  # vLLM's way to write "no seed"
        form = {} if self.has_extensions else self._shape_output(given.pop("structured_outputs", None))
        known = OPENAI | EXTENSIONS if self.has_extensions else OPENAI
        if unknown := sorted(set(given) - known):
            raise SpecError(self._refuse(unknown))
        if self.has_extensions:
            given = {**NEUTRAL, **given, **self._ask_for_logprobs(given.get("logprobs"))}
        return {**given, **form}

    def _refuse(self, names: list[str]) -> str:
        what = f"The sampling parameters {', '.join(names)}" if len(names) > 1 else f"The sampling parameter {names[0]}"
        if self.has_extensions:
            return f"{what} can be used with the engine itself and not over HTTP. Remove it, or take another backend."
        return (
            f"{what} goes beyond OpenAI's interface, and the server does not say that it is vLLM. Remove it, or set "
            "engine.server.extensions to vllm if the server takes it all the same."
        )

    def _ask_for_logprobs(self, wanted: Any) -> dict[str, Json]:
        if wanted is None:
            return {}
        asked: dict[str, Json] = {"logprobs": wanted} if self.endpoint == "completions" else {
            "logprobs": True, "top_logprobs": wanted,
        }  # fmt: skip
        return {**asked, "return_tokens_as_token_ids": True}

    def _shape_output(self, form: Any) -> dict[str, Json]:
        """structured_outputs as OpenAI's response_format, which knows JSON alone and chat alone."""
        if form is None:
            return {}
        if self.endpoint != "chat" or set(form) != {"json"}:
            raise SpecError(
                f"A form of the output ({', '.join(form)}) can be asked of a server that is not vLLM only as a JSON "
                "schema, and with engine.server.endpoint: chat."
            )
        schema = {"name": "answer", "schema": form["json"], "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
