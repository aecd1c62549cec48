"""Lines of an OpenAI batch file: `{"custom_id", "method", "url", "body"}`, each a request of its own.

A line that breaks the format, or whose body asks for what cannot be done here, is a bad row, and the others are asked.
What makes a file a batch file (a line's keys, an endpoint that is known) is wanted of its first line at once. Every
field of a body has an effect, or has none that an answer could show (`WITHOUT_EFFECT`), or refuses the line: nothing is
dropped in silence. A field that is null counts as not there. Names and meanings are those of vLLM's server, which has
OpenAI's and more.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from assayline.digests import digest_text
from assayline.errors import PromptError
from assayline.media.fetch import Fetcher
from assayline.media.references import MediaReader, MediaStore
from assayline.prompts.columns import try_text
from assayline.prompts.media import MediaPlacement
from assayline.prompts.row import (
    Reader,
    Row,
    RowError,
    RowShapeError,
    as_json,
    check_text,
    list_names,
    read_messages,
    without_none,
)
from assayline.records import BatchBody, Json, Prompt
from assayline.spec.prompts import MOST_REPEATS, Columns, MediaSpec

CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT_URL, COMPLETIONS_URL)

SAMPLING = frozenset({
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "logit_bias",
    "max_tokens", "min_p", "min_tokens", "presence_penalty", "prompt_logprobs", "repetition_detection",
    "repetition_penalty", "seed", "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids",
    "structured_outputs", "temperature", "thinking_token_budget", "top_k", "top_p",
})  # fmt: skip
"""Fields with the same name and meaning in vllm.SamplingParams."""

WITHOUT_EFFECT = frozenset({
    "metadata", "model", "parallel_tool_calls", "priority", "prompt_cache_key", "prompt_cache_retention", "request_id",
    "safety_identifier", "service_tier", "session_id", "store", "user",
})  # fmt: skip
"""On an answer: names and labels, and when or where it is made. `model` is checked with the line."""

ONLY_AS: dict[str, tuple[Json, ...]] = {
    "best_of": (1,), "chat_template": (), "echo": (False,), "include_reasoning": (True,), "length_penalty": (1, 1.0),
    "modalities": (["text"],), "return_token_ids": (False,), "stream": (False,), "stream_options": (), "suffix": ("",),
    "tool_choice": ("none", "auto"), "use_beam_search": (False,),
}  # fmt: skip
"""Values that ask for nothing which is not done anyway."""

REASONS: dict[str, str] = {
    "stream": "a batch is answered when all of it is there. Remove it",
    "tool_choice": "a call cannot be forced here. Expected none or auto: tools are shown to the model, and its answer "
    "is kept as it wrote it",
    "chat_template": "the template is the run's. Set chat.template in the spec",
    "suffix": "there is no filling in between here. Remove it",
    "echo": "the prompt is not given back. Remove it",
}

TEMPLATE_VARIABLES = ("documents", "reasoning_effort", "tools")

DEFAULT_TEXT_TOKENS = 16
"""max_tokens of /v1/completions, where a body does not say."""


class BatchReader(Reader):
    """Read the lines of one batch file, in their order. It remembers 64 bits of each custom_id."""

    def __init__(self, media: MediaSpec, media_store: MediaStore | None = None) -> None:
        """`media_store` is where media that come inside a body are kept (None: nowhere)."""
        self._media = MediaPlacement(Columns(), media, MediaReader(media_store or MediaStore(None), Fetcher(media)))
        self._seen: set[int] = set()
        self._url: str | None = None
        self._model: Json = None

    def check_first(self, row: Row) -> None:
        """Raise PromptError if the first line is not of a batch file. Stores nothing."""
        try:
            _check_line(row)
        except RowShapeError as error:
            raise PromptError(f"The first line is not of a batch file. {error}") from None
        except RowError:
            pass  # a fault of this line alone

    def identify(self, row: Row) -> tuple[str | None, None]:
        """Return the custom_id of an unreadable line, if it has one; such lines have no target."""
        return try_text(row, "custom_id", "custom_id") or None, None

    def _read(self, row: Row) -> Prompt:
        _check_line(row)
        custom_id, url = check_text(row["custom_id"], "custom_id"), row["url"]
        self._check_unique(custom_id)
        body = as_json(row["body"], "The body")
        self._check_alike(url, body.get("model"))
        parts = read_chat_body(body) if url == CHAT_URL else read_text_body(body)
        messages = parts.messages
        if url == CHAT_URL:
            messages = read_messages(messages, lambda part, where: self._media.read_part(part, where, row))
            messages = self._media.place(messages, {})
        metadata = {"url": url, "model": body.get("model")}
        return replace(parts, messages=messages, source_id=custom_id, metadata=metadata)

    def _check_unique(self, custom_id: str) -> None:
        key = int(digest_text(custom_id)[:16], 16)
        if key in self._seen:
            raise RowError(
                f"custom_id {custom_id!r:.80} stands on an earlier line, too, expected one of its own on each: answers "
                "are found by it. The earlier line is asked, this one is not."
            )
        self._seen.add(key)

    def _check_alike(self, url: str, model: Json) -> None:
        if self._url is None:
            self._url, self._model = url, model
        for what, first, given in (("endpoint", self._url, url), ("model", self._model, model)):
            if first != given:
                raise RowError(
                    f"The line asks the {what} {given!r:.80}, and the first one {first!r:.80}. A batch file has one "
                    f"{what}: put these lines into a file of their own."
                )


def _check_line(row: Row) -> None:
    """Raise RowShapeError for a line that is not of a batch file, RowError for one with a fault of its own."""
    if missing := [name for name in ("custom_id", "method", "url", "body") if name not in row]:
        raise RowShapeError(
            f"It has no {' and no '.join(missing)}, expected custom_id, method, url and body. Its keys: "
            f"{list_names(map(str, row))}."
        )
    if row["url"] not in URLS:
        raise RowShapeError(
            f"It asks the endpoint {row['url']!r:.80}, which is not answered here. Expected {' or '.join(URLS)}."
        )
    if row["method"] != "POST":
        raise RowError(f"The line's method is {row['method']!r:.80}, expected POST.")
    if not isinstance(row["custom_id"], str) or not row["custom_id"]:
        raise RowError(f"custom_id is {row['custom_id']!r:.80}, expected a text that is not empty.")
    if not isinstance(row["body"], dict):
        raise RowError(f"The body is {row['body']!r:.80}, expected an object with the request.")


def read_chat_body(body: Mapping[str, Json]) -> Prompt:
    """Read the body of a line for /v1/chat/completions, messages unchanged. Raises RowError for wrong fields."""
    given = without_none(body)
    if "messages" not in given:
        raise RowError(f"The body has no messages, expected a list. Its keys: {list_names(body)}.")
    messages = given.pop("messages")
    sampling: dict[str, Json] = {}
    if given.pop("logprobs", False) is not False:
        sampling["logprobs"] = given.pop("top_logprobs", 0)
    elif given.pop("top_logprobs", 0):
        raise RowError("The body has top_logprobs without logprobs: true.")
    if "max_completion_tokens" in given:
        given["max_tokens"] = given.pop("max_completion_tokens")
    variables = {name: given.pop(name) for name in TEMPLATE_VARIABLES if given.get(name)}
    if "reasoning_effort" in variables:  # as vLLM's server does, for templates that want thinking switched on
        variables["enable_thinking"] = variables["reasoning_effort"] != "none"
    variables |= _read_template_kwargs(given.pop("chat_template_kwargs", {}))
    continues = _read_continuation(given)
    sampling |= _read_common(given, special_tokens=False)
    asked = BatchBody(variables=variables, continues=continues, samples=_read_samples(body))
    return Prompt(messages=messages, sampling=sampling, body=asked)


def read_text_body(body: Mapping[str, Json]) -> Prompt:
    """Read the body of a line for /v1/completions. Raises RowError for unsupported fields."""
    given = without_none(body)
    prompt = given.pop("prompt", None)
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    sampling: dict[str, Json] = {} if "max_tokens" in body else {"max_tokens": DEFAULT_TEXT_TOKENS}
    if "logprobs" in given:
        sampling["logprobs"] = given.pop("logprobs")
    sampling |= _read_common(given, special_tokens=True)
    samples = _read_samples(body)
    if isinstance(prompt, str):
        text = BatchBody(text=check_text(prompt, "The prompt"), samples=samples)
        return Prompt(messages=[{"role": "user", "content": prompt}], sampling=sampling, body=text)
    if isinstance(prompt, list) and prompt and all(isinstance(one, int) and one >= 0 for one in prompt):
        asked = BatchBody(samples=samples)
        return Prompt(messages=[], sampling=sampling, prompt_token_ids=prompt, body=asked)
    raise RowError(
        f"The body's prompt is {prompt!r:.80}, expected one text, or token ids. Several prompts are a line each."
    )


def _read_common(given: dict[str, Json], *, special_tokens: bool) -> dict[str, Json]:
    """Sampling parameters of what is left of a body. Raises RowError for a field that asks for something else.

    `special_tokens`: whether the endpoint puts the tokenizer's own before a prompt unless it is told otherwise.
    """
    form = _read_form(given.pop("response_format", None))
    if form and "structured_outputs" in given:
        raise RowError("The body's response_format and structured_outputs both say what an answer is.")
    sampling = dict(form)
    for name, value in given.items():
        if name in SAMPLING:
            sampling[name] = value
        elif name == "n" or name in WITHOUT_EFFECT or (name == "add_special_tokens" and value is special_tokens):
            continue
        elif value not in (ONLY_AS.get(name, ()) or ([], {})):
            reason = REASONS.get(name, "that cannot be done here. Remove it")
            raise RowError(f"The body asks for {name}: {json.dumps(value)[:80]}; {reason}.")
    return sampling


def _read_form(asked: Json) -> dict[str, Json]:
    """response_format as the sampling parameter structured_outputs."""
    kind = asked.get("type") if isinstance(asked, dict) else None
    if asked is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"structured_outputs": {"json_object": True}}
    schema = asked.get("json_schema") if kind == "json_schema" else None
    if isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
        return {"structured_outputs": {"json": schema["schema"]}}
    raise RowError(
        f"The body's response_format is {asked!r:.120}, expected the type text, json_object, or json_schema with "
        "json_schema.schema."
    )


def _read_samples(body: Mapping[str, Json]) -> int:
    samples = 1 if body.get("n") is None else body["n"]
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= MOST_REPEATS:
        raise RowError(f"The body's n is {samples!r:.80}, expected a whole number from 1 to {MOST_REPEATS}.")
    return samples


def _read_template_kwargs(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise RowError(f"The body's chat_template_kwargs are {value!r:.80}, expected variables of the template.")
    return value


def _read_continuation(given: dict[str, Json]) -> bool:
    """Return whether to continue the last message. Raises RowError if both flags are equal."""
    opens, continues = given.pop("add_generation_prompt", None), given.pop("continue_final_message", False)
    if continues not in (True, False) or opens not in (None, not continues):
        raise RowError(
            f"The body has add_generation_prompt {opens!r:.20} and continue_final_message {continues!r:.20}, expected "
            "one of them to be true and the other false."
        )
    return bool(continues)
