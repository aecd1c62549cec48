"""From messages to token ids, once.

Rendering to text, and tokenising that text again elsewhere, adds a second BOS: the field's most repeated bug. Here a
chat template makes a text, the text makes ids without special tokens of the tokenizer's own (the template has written
them), and the ids are what the engine gets: the same ids as
`tokenizer.apply_chat_template(tokenize=True)`. Mode `plain` has no template, so there the tokenizer adds its own.

A template comes with a foreign model. transformers runs it in Jinja's sandbox. What it raises is an error of the row.
A template that asks for the time gets `MIDNIGHT`: equal messages make equal prompts on every day. Where a
server renders, messages go out as they are (`ServedChat`).
"""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2

from assayline.digests import digest_json
from assayline.errors import AssaylineError, ModelError, SpecError
from assayline.prompts.row import Message, RowError, check_text
from assayline.prompts.template import LONGEST_CHARS, describe_error
from assayline.records import BatchBody, MediaKind
from assayline.requests.model_config import (
    Placeholders,
    check_kinds,
    check_placeholders,
    list_kinds,
    write_placeholder,
)
from assayline.requests.tokenizer import find_backend
from assayline.spec.prompts import ChatSpec
from assayline.words import nearest

RESERVED = frozenset({
    "chat_template", "continue_final_message", "conversation", "max_length", "messages",
    "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "strftime_now", "tokenize",
    "tokenizer_kwargs", "truncation",
})  # fmt: skip
"""Arguments of apply_chat_template that a template's variables must not reach."""

PROBE = "assayline probe"
MIDNIGHT = datetime.datetime(2024, 7, 26)
"""The time in every template, of the default date in those of Llama 3: prompts do not change from day to day."""
STAND_IN = "assaylinespecial{}token"
"""Stands for a special token in a row's text while the template runs. No filter of JSON escapes it."""
ALWAYS_TOKENISED_CHARS = 2**20


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the model reads it."""

    text: str
    """The tokenized text. In mode plain, the tokenizer's own BOS is only in `token_ids`."""
    token_ids: list[int]
    messages: list[Message] | None = None
    """The chat as it is, where a server renders it; then there is neither text nor token ids."""
    option: str | None = None
    """The option at its end, as given; the blank that it got from the prompt's end is not in it."""
    option_tokens: int | None = None
    """How many of the last tokens are the option."""


class ChatRenderer:
    """Renders conversations by one spec and one tokenizer.

    `template_id` is equal where equal messages give equal prompts under the same tokenizer: it digests the template's
    text, wherever it came from, and everything that is put around the messages.
    """

    def __init__(
        self,
        spec: ChatSpec,
        tokenizer: Any,
        max_model_len: int | None = None,
        placeholders: Placeholders | None = None,
        thinks: Callable[[str, str | None], bool] = lambda prompt, prefill: False,
    ) -> None:
        """`placeholders` are those of the model (None: it takes text alone). `thinks` returns whether the model begins
        with thinking after a prompt that ends with this prefill.

        Raises ModelError for a model without the template, SpecError for a file that is not there, a template that
        is not Jinja2 and kwargs that are not variables of a template."""
        reserved = sorted(RESERVED & set(spec.kwargs))
        if reserved:
            raise SpecError(
                f"chat.kwargs holds {', '.join(reserved)}, which the renderer sets itself. Expected "
                "variables of the template; see chat.prefill."
            )
        self.tokenizer, self.max_model_len = tokenizer, max_model_len
        self._placeholders = placeholders or {}
        self._thinks = thinks
        self._spec = spec
        self._mode, self._template = find_template(spec, tokenizer)
        self._most_chars = _most_chars(tokenizer, max_model_len)
        self._stand_ins, self._special = _list_special(tokenizer, spec.special_tokens)
        self._backend = find_backend(tokenizer)
        self._content_form = "text" if self._mode == "plain" else self._find_content_form()
        self.template_id = digest_json({
            "mode": "plain" if self._mode == "plain" else "chat",
            "template": self._template,
            "system": spec.system,
            "prefill": spec.prefill or None,
            "kwargs": spec.kwargs,
            **({"special_tokens": "text"} if spec.special_tokens == "text" else {}),
            **({"date": MIDNIGHT.date()} if "strftime_now" in (self._template or "") else {}),
        })  # fmt: skip

    def render(self, messages: list[Message], body: BatchBody | None = None) -> Rendered:
        """Return the messages as a prompt, with what a batch file's body wants of it. Raises RowError: template_error
        for what the template raises, media_error for media that the model does not take or the template leaves out."""
        body = body or BatchBody()
        if body.text is not None:
            return Rendered(body.text, self._encode(body.text, special_tokens=True))
        if reserved := sorted(RESERVED & set(body.variables)):
            raise RowError(
                f"chat_template_kwargs holds {', '.join(reserved)}, which the renderer sets itself. Expected variables "
                "of the template."
            )
        variables: Mapping[str, Any] = body.variables
        if self._spec.special_tokens != "control":
            messages, variables = self._replace_special(messages), self._replace_special(dict(variables))
        kinds = list_kinds(messages)
        check_kinds(kinds, self._placeholders)
        conversation = self._complete(messages)
        self._check_length(sum(_count_chars(message.get("content")) for message in conversation))
        if self._mode == "plain":
            text = " ".join(filter(None, (message.get("content") for message in self._write_media(conversation, " "))))
        else:
            continues = bool(self._spec.prefill) or body.continues
            text = self._apply(self._shape_contents(conversation), continues=continues, variables=variables)
        self._check_length(len(text))  # again in `encode`: before the next line, which takes memory of its own
        check_text(text, "The rendered chat")
        if body.continues and self._thinks(text, None) != self._thinks(text, str(messages[-1].get("content"))):
            raise RowError(
                "The row continues an answer, and what the model adds would be taken for thinking. hint: set "
                "chat.prefill instead of continue_final_message, or remove `reasoning`."
            )
        check_placeholders(text, kinds, self._placeholders)
        if self._spec.special_tokens == "text":
            return self._encode_apart(text)
        return Rendered(text, self.encode(text))

    def _replace_special(self, value: Any) -> Any:
        """Return a row's part with stand-ins for special tokens. Raises RowError if special tokens are not allowed."""
        if isinstance(value, str):
            return self._special.sub(self._replace_one, value) if self._special else value
        if isinstance(value, list):
            return [self._replace_special(item) for item in value]
        if isinstance(value, dict):
            return {self._replace_special(key): self._replace_special(item) for key, item in value.items()}
        return value

    def _replace_one(self, found: re.Match[str]) -> str:
        if self._spec.special_tokens == "error":
            raise RowError(
                f"The row's text holds {found[0]!r}, which is a special token of this model, and chat.special_tokens "
                "is error. hint: take it out, or set chat.special_tokens to text."
            )
        return self._stand_ins[found[0]]

    def _encode_apart(self, text: str) -> Rendered:
        """Token ids of a text with stand-ins: what they stand for is read as text, what the template writes is control.

        The text is cut at the template's special tokens, as the tokenizer would. Raises RowError for a tokenizer that
        makes other ids of the pieces than of the whole, or a special token of a piece.
        """
        pieces = self._special.split(text) if self._special and self._mode != "plain" else [text]
        whole = self._restore(text)
        if whole == text:
            return Rendered(text, self.encode(text))
        self._check_length(len(whole))
        vocabulary = {token: self.tokenizer.convert_tokens_to_ids(token) for token in self._stand_ins}
        is_plain = self._mode == "plain"
        as_given: list[int] = []
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                as_given.append(vocabulary[piece])
                ids.append(vocabulary[piece])
                continue
            as_given += self._encode_text(piece, is_plain)
            ids += self._encode_text(self._restore(piece), is_plain)
        special = [sum(map(found.count, vocabulary.values())) for found in (as_given, ids)]
        if as_given != self.encode(text) or special[0] != special[1]:
            raise RowError(
                "The row's text holds a special token, which this tokenizer cannot read as text exactly. hint: take it "
                "out, or set chat.special_tokens to error or control."
            )
        return Rendered(whole, ids)

    def _restore(self, text: str) -> str:
        for token, stand_in in self._stand_ins.items():
            text = text.replace(stand_in, token)
        return text

    def _encode_text(self, text: str, special_tokens: bool) -> list[int]:
        ids: list[int] = self.tokenizer(
            text, add_special_tokens=special_tokens, split_special_tokens=True, verbose=False
        )["input_ids"]
        return ids

    def apply(self, conversation: list[Message], add_generation_prompt: bool = True) -> str:
        """Return the unchanged text of a conversation; without a generation prompt, its last message is continued."""
        return self._apply(conversation, continues=not add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered text. Raises RowError for a text that is too long to tokenise."""
        return self._encode(text, special_tokens=self._mode == "plain")

    def _encode(self, text: str, *, special_tokens: bool) -> list[int]:
        self._check_length(len(text))
        ids: list[int]
        if self._backend is None:
            ids = self.tokenizer(text, add_special_tokens=special_tokens, verbose=False)["input_ids"]
        else:  # the same call without the offsets of each token, which take as long as the rest
            self._backend.encode_special_tokens = self.tokenizer.split_special_tokens
            ids = self._backend.encode_batch_fast([text], add_special_tokens=special_tokens)[0].ids
        return ids

    def encode_media(self, messages: list[Message]) -> list[int]:
        """Token ids of placeholders for the media in messages. Raises RowError for what the model does not take."""
        kinds = list_kinds(messages)
        check_kinds(kinds, self._placeholders)
        numbered = ((kind, kinds[:at].count(kind) + 1) for at, kind in enumerate(kinds))
        text = "".join(write_placeholder(self._placeholders, kind, number) for kind, number in numbered)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text else []
        return ids

    def _check_length(self, chars: int) -> None:
        if chars > self._most_chars:
            raise RowError(
                f"The prompt has {chars} characters, expected at most {self._most_chars}: more do not fit the model's "
                "context, or are too much to tokenise. Shorten it.",
                "prompt_too_long",
            )

    def _complete(self, messages: list[Message]) -> list[Message]:
        spec = self._spec
        if spec.system is not None and all(message.get("role") != "system" for message in messages):
            messages = [{"role": "system", "content": spec.system}, *messages]
        return [*messages, {"role": "assistant", "content": spec.prefill}] if spec.prefill else messages

    def _apply(self, conversation: list[Message], continues: bool, variables: Mapping[str, Any] | None = None) -> str:
        try:
            return self._fill(conversation, continues, variables)
        except Exception as error:  # a template is a program over foreign data: it can raise anything
            raise RowError(
                f"The chat template ({self._mode}) failed on this conversation: {describe_error(error)}",
                "template_error",
            ) from None

    def _fill(self, conversation: list[Message], continues: bool, variables: Mapping[str, Any] | None) -> str:
        given = {"add_generation_prompt": True, **self._spec.kwargs, **(variables or {})}
        given["add_generation_prompt"] &= not continues
        text: str = self.tokenizer.apply_chat_template(
            conversation, chat_template=self._template, tokenize=False, continue_final_message=continues,
            **{**given, "strftime_now": MIDNIGHT.strftime},
        )  # fmt: skip
        return text

    def _shape_contents(self, conversation: list[Message]) -> list[Message]:
        if self._content_form == "text":
            return self._write_media(conversation, "\n")
        if self._content_form == "both":
            return conversation
        return [as_parts(message) for message in conversation]

    def _write_media(self, conversation: list[Message], between: str) -> list[Message]:
        """Every content as one text, with placeholders where media are."""
        numbers: Counter[MediaKind] = Counter()

        def write(part: dict[str, Any]) -> str | None:
            if part["type"] == "text":
                return str(part["text"])
            numbers[part["type"]] += 1
            return write_placeholder(self._placeholders, part["type"], numbers[part["type"]]) or None

        return [
            {**message, "content": between.join(text for text in map(write, message["content"]) if text is not None)}
            if isinstance(message.get("content"), list)
            else message
            for message in conversation
        ]

    def _find_content_form(self) -> Literal["text", "parts", "both"]:
        """Return the form of content that the template takes. Most print Python's repr, or nothing, for the other form.

        Raises SpecError or ModelError if the template cannot be compiled.
        """
        as_text, as_parts = self._probe(PROBE), self._probe([{"type": "text", "text": PROBE}])
        if as_text == as_parts:
            return "both"
        return "parts" if PROBE in as_parts and PROBE not in as_text else "text"

    def _probe(self, content: Any) -> str:
        try:
            return self._fill([{"role": "user", "content": content}], False, None)
        except jinja2.TemplateSyntaxError as error:
            raise self._not_jinja(error) from None
        except Exception:  # a template may refuse such a conversation: rows will show
            return ""

    def _not_jinja(self, error: jinja2.TemplateSyntaxError) -> AssaylineError:
        message = f"The chat template ({self._mode}) is not Jinja2: {error.message} (line {error.lineno})."
        if self._mode == "default":
            return ModelError(f"{message} Give another in chat.template: plain, a file, or inline Jinja2.")
        return SpecError(f"{message} It was given in chat.template.")


def as_parts(message: Message) -> Message:
    """Return a message whose content is parts; as in vLLM, a tool's result is text, and an empty answer has none."""
    content, role = message.get("content"), message["role"]
    if role == "tool" or not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}] if content or role != "assistant" else []}


def _list_special(tokenizer: Any, wanted: str) -> tuple[dict[str, str], re.Pattern[str] | None]:
    """Return a stand-in for each special token, and a pattern that finds these tokens. Raises SpecError."""
    if wanted == "control":
        return {}, None
    known = getattr(tokenizer, "added_tokens_decoder", None)
    if known is None:
        raise SpecError(
            f"chat.special_tokens is {wanted}, and this model's tokenizer does not list its special tokens. hint: set "
            "it to control."
        )
    texts = sorted(
        {token.content for token in known.values() if token.special and token.content}, key=len, reverse=True
    )
    pattern = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None
    return {text: STAND_IN.format(number) for number, text in enumerate(texts)}, pattern


def _count_chars(content: Any) -> int:
    return sum(len(part.get("text", "")) for part in content) if isinstance(content, list) else len(content or "")


def _most_chars(tokenizer: Any, max_model_len: int | None) -> int:
    """Longest text to tokenise, which takes hundreds of bytes per character.

    Below a million characters it is always done. Beyond, a text that would not fit the context even if the tokenizer's
    longest token were all of it need not be.
    """
    if max_model_len is None:
        return LONGEST_CHARS
    longest_token = max(map(len, tokenizer.get_vocab()), default=1)
    return min(LONGEST_CHARS, max(ALWAYS_TOKENISED_CHARS, max_model_len * longest_token))


def find_template(spec: ChatSpec, tokenizer: Any) -> tuple[str, str | None]:
    """(what it is called in messages, the template's text). The text is None in mode plain.

    Raises SpecError for a name or file that is not there, ModelError for a model without the template.
    """
    given, own = spec.template, getattr(tokenizer, "chat_template", None)
    if given == "plain":
        return "plain", None
    if given == "default":
        return "default", _find_default(own, spec)
    if "{{" in given or "{%" in given:
        return "inline", given
    if isinstance(own, dict) and given in own:
        return given, own[given]
    try:
        return given, Path(given).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        names = ["default", "plain", *(own if isinstance(own, dict) else [])]
        raise SpecError(
            f"chat.template is {given!r}, which is not a file (working folder: {Path.cwd()}), Jinja2 or "
            f"a known name; {nearest(given, names)}"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:  # not UTF-8, or no path: a NUL in it, a ~user who is not there
        raise SpecError(f"chat.template {given!r:.200} cannot be read as text: {error!s:.200}.") from None


def _find_default(own: Any, spec: ChatSpec) -> str:
    if isinstance(own, dict):
        name = "tool_use" if spec.kwargs.get("tools") is not None and "tool_use" in own else "default"
        if name in own:
            return str(own[name])
        raise ModelError(
            f"The model's tokenizer has chat templates named {', '.join(sorted(own))} and none named "
            "default. hint: set chat.template to one of these names."
        )
    if not own:
        raise ModelError(
            "The model's tokenizer has no chat template: it is a base model, or the template is "
            "elsewhere. hint: set chat.template to plain, to a Jinja2 file, or to inline Jinja2."
        )
    return str(own)


class ServedChat:
    """Completes conversations by a spec, and leaves the rest to the server.

    `template_id` says what is put around the messages here; the server's own template is its business.
    """

    tokenizer = max_model_len = None

    def __init__(self, spec: ChatSpec) -> None:
        self._system = spec.system
        self.template_id = digest_json({"mode": "served", "system": spec.system, "kwargs": spec.kwargs})

    def render(self, messages: list[Message], body: BatchBody | None = None) -> Rendered:
        """Return the messages to send. Raises RowError if a batch file's body needs more than messages."""
        if body is not None and (body.text is not None or body.variables or body.continues):
            what = "a text prompt" if body.text is not None else "tools, or other variables of the template"
            raise RowError(
                f"The row has {what}, for which prompts must be rendered here. hint: set engine.server.endpoint to "
                "completions."
            )
        if self._system is not None and all(message.get("role") != "system" for message in messages):
            messages = [{"role": "system", "content": self._system}, *messages]
        return Rendered("", [], messages)

    def encode(self, text: str) -> list[int]:
        """Raise SpecError, like `encode_media`, because the server has the only tokenizer."""
        raise _no_tokenizer("The likelihood of an option")

    def encode_media(self, messages: list[Message]) -> list[int]:
        raise _no_tokenizer("A prompt of token ids with media")


Renderer = ChatRenderer | ServedChat


def _no_tokenizer(what: str) -> SpecError:
    return SpecError(
        f"{what} needs a tokenizer, and with engine.server.endpoint chat only the server has one. hint: set the "
        "endpoint to completions, or engine.backend to offline or async."
    )
