"""Rows: what a source gives, their values as text or plain JSON, and the parts of a prompt that come of them.

Sources differ in what they hold: CSV has only text, Parquet has dates, decimals and NaN for "missing", JSON may hold
lone surrogates that no database takes. Every value passes here once, so that what is stored can be stored; one that
cannot be used is a RowError. A recorded conversation has the answers of another model, or of a person: asked turn by
turn, only its questions are taken.
"""

import datetime
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from assayline.errors import PromptError
from assayline.errors import RowError as RowError
from assayline.records import Prompt
from assayline.words import nearest

Row = dict[str, Any]
Message = dict[str, Any]
UNITS_PER_S = {"s": 1.0, "ms": 1000.0, "date": 1.0}
"""Of stamps, as `read_stamp` reads them."""

MOST_TOKENS = 2**24
"""A length beyond this is a mistake, and would fill the memory."""

SPEAKERS = frozenset({"user", "system", "developer"})
"""Roles whose messages are said to the model."""

ReadPart = Callable[[dict[str, Any], str], dict[str, Any]]
"""Read a content part other than text; the string is its location, for messages."""


class RowShapeError(RowError):
    """The spec asks for what the row does not have: in the first row the whole run is wrong, later only the row."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that is there and is not of its file's format."""

    text: str
    """The row as in the file; bytes other than UTF-8 are written as \\xff."""
    message: str
    """File, line, what is wrong, and what was expected."""


class Struct(dict[str, Any]):
    """An object of a format in which all objects have the same fields, such as Parquet's.

    A field without a value is there when it is asked for, and null; it is in no list, no JSON and no message, since
    another row may be the only one that has it.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({name: unpad(value) for name, value in fields.items() if value is not None})
        self._fields = fields.keys()

    def __missing__(self, name: str) -> None:
        if name not in self._fields:
            raise KeyError(name)


def unpad(value: Any) -> Any:
    """Return a column's value with a Struct for each object."""
    if isinstance(value, dict):
        return Struct(value)
    return [unpad(item) for item in value] if isinstance(value, list) else value


class Number(float):
    """A number of a JSON file, which is written as it is there: 1.50 and 1e5, not 1.5 and 100000.0."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class FileRow(Row):
    """A row that knows the folder of its file, which paths in it are relative to."""

    __slots__ = ("folder",)

    def __init__(self, row: Row, folder: Path) -> None:
        super().__init__(row)
        self.folder = folder


class AnswerRow(Row):
    """A row that is a stored answer of another run, and its keys.

    They are always in the prompt's metadata, so that SQL can join a verdict with the judged answer.
    """

    __slots__ = ("origin",)

    def __init__(self, row: Row, origin: dict[str, Any]) -> None:
        super().__init__(row)
        self.origin = origin


class Reader(ABC):
    """Reader of the rows of a source."""

    def read(self, row: Any) -> Prompt:
        """Read one row, without its identity; media are parts with a reference (`media.py`).

        Raises RowShapeError if parts are missing, RowError for unusable values.
        """
        try:
            return self._read(row)
        except RecursionError:
            raise RowError(
                "The row holds lists or objects that are nested hundreds of levels deep, "
                "expected text and shallow objects."
            ) from None

    @abstractmethod
    def _read(self, row: Any) -> Prompt: ...

    def identify(self, row: Any) -> tuple[str | None, str | None]:
        """Return the id and the target of an unreadable row, if it has them."""
        return None, None

    def check_first(self, row: Any) -> None:
        """Raise PromptError if the first row lacks a column or variable that the spec names."""
        try:
            self.read(row)
        except RowShapeError as error:
            raise PromptError(f"The first row does not fit the spec. {error}") from None
        except RowError:
            pass  # a fault of this row alone: it becomes an error row like any other


def find_column(row: dict[str, Any], column: str, setting: str) -> Any:
    """Return the row's value in a column. Raises RowShapeError with the setting that needs it and the columns."""
    try:
        return row[column]
    except KeyError:
        raise RowShapeError(f"Column {column!r}, named by {setting}, is not in the row; {hint(column, row)}") from None


def hint(name: str, columns: Iterable[str]) -> str:
    """Return the nearest column, if one is near, and all columns."""
    names = sorted(columns)
    near = nearest(name, names)
    return f"{near} Columns: {list_names(names)}." if near.startswith("did") else f"columns: {list_names(names)}."


def list_names(names: Iterable[str]) -> str:
    """Format names for a message, at most forty."""
    shown = sorted(names)
    return ", ".join(shown[:40]) + (f" and {len(shown) - 40} more" if len(shown) > 40 else "") if shown else "(none)"


def is_null(value: Any) -> bool:
    """Return whether a value is missing: null, NaN, or pandas' NaT."""
    return value is None or (isinstance(value, float | datetime.datetime) and value != value)


def as_text(value: Any, where: str) -> str | None:
    """Format a value as a person would write it: 7 → "7", 7.0 → "7.0", True → "true", a list → JSON.

    A missing value is None. Raises RowError for bytes and for text that is not Unicode.
    """
    if isinstance(value, bool | datetime.date | datetime.time) and not is_null(value):
        return str(value).lower() if isinstance(value, bool) else str(value)
    plain = as_json(value, where)
    if plain is None or isinstance(plain, str):
        return plain
    return str(value) if isinstance(value, int | float) else json.dumps(plain, ensure_ascii=False)


def as_json(value: Any, where: str) -> Any:
    """Convert a value for `json.dumps`: dates as ISO text, decimals as digits, NaN as None, keys as text.

    Raises RowError for bytes, other objects and text that is not Unicode.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return check_text(value, where)
        case _ if is_null(value):
            return None
        case float() if math.isinf(value):
            raise RowError(
                f"{where} holds {value}, which is not a number; JSON reads 1e999 and Infinity so. hint: write it as "
                "text, or leave the cell empty."
            )
        case float():
            return float(value)
        case dict():
            return {check_text(str(key), where): as_json(item, where) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item, where) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return str(value)
        case Decimal():
            return f"{value:f}"  # str() writes 0E-10 for a zero of ten places
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return as_json(value.tolist(), where)
    raise RowError(
        f"{where} holds {type(value).__name__}, expected text, a number, true or false, a date, a list or an object."
    )


def check_text(text: str, where: str) -> str:
    """Return the text itself. Raises RowError for a lone surrogate, which neither tokenizer nor database accepts."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError(
                f"{where} holds a lone surrogate ({text[error.start]!a}, character "
                f"{error.start}), which is not Unicode text. hint: write it in UTF-8."
            ) from None
    return text


def read_stamp(value: Any, unit: Literal["s", "ms", "date"]) -> float | None:
    """Return a timestamp in its unit, a date in seconds since 1970 (UTC without an offset); None if invalid."""
    try:
        if unit == "date":
            date = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
            return (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp()
        stamp = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return stamp if math.isfinite(stamp) else None


def read_count(value: Any, column: str) -> int:
    """Return a number of tokens, also of a text, or with a point and zeros as tables have it next to missing values."""
    try:
        tokens = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        tokens = math.nan
    if not 1 <= tokens <= MOST_TOKENS or tokens % 1:
        raise RowError(f"The column {column} holds {value!r:.80}, expected a number of tokens from 1 to {MOST_TOKENS}.")
    return int(tokens)


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text, as CSV holds objects. Raises RowError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"{where} holds text that is not JSON: {explain_json(error)}. It begins {text[:60]!r}."
        ) from None


def explain_json(error: Exception) -> str:
    """Why a text is not JSON. Python's own words for a long number advise to call a function of Python's."""
    return "a whole number of more than 4,300 digits" if "sys.set_int_max_str_digits" in str(error) else str(error)


def read_messages(value: Any, read_part: ReadPart) -> list[Message]:
    """Chat messages from a list of {role, content}, or from its JSON text, as vLLM's server gives them to a template.

    Keys that are null are dropped, since templates ask whether a key is there. Raises RowError for another shape.
    """
    value = open_json(value, "The messages column")
    if not isinstance(value, list) or not value:
        raise RowError(f"The messages are {value!r:.80}, expected a list of at least one {{role, content}}.")
    return [_read_message(message, f"Message {number}", read_part) for number, message in enumerate(value, start=1)]


def open_json(value: Any, where: str) -> Any:
    """Return a value of a column that holds lists or objects, or their JSON text."""
    return parse_json(value, where) if isinstance(value, str) else value


def _read_message(message: Any, where: str, read_part: ReadPart) -> Message:
    if not isinstance(message, dict):
        raise RowError(f"{where} is {message!r:.80}, expected an object {{role, content}}.")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise RowError(
            f"{where} has the role {role!r:.80}, expected text such as user. Its keys: {list_names(map(str, message))}."
        )
    if isinstance(content, str) and len(message) == 2:
        return {"role": check_text(role, where), "content": check_text(content, where)}
    if content is None and role in MAY_BE_EMPTY:
        content = ""
    elif isinstance(content, list):
        parts = [_read_part(part, f"{where}, part {number}", read_part) for number, part in enumerate(content, start=1)]
        is_result = role == "tool" and all(part["type"] == "text" for part in parts)
        content = "\n".join(part["text"] for part in parts) if is_result else parts
    elif not isinstance(content, str):
        raise RowError(f"{where} has the content {content!r:.80}, expected text or a list of parts.")
    message = {**message, "content": content}
    calls = message.pop("tool_calls", None) or []
    if role == "assistant":
        calls = open_json(calls, f"{where}, tool_calls")
        message["tool_calls"] = [
            _read_call(call, where) for call in (calls if isinstance(calls, list) else [calls])
        ] or None
        thinking = next((message[key] for key in THINKING if message.get(key) is not None), None)
        message |= dict.fromkeys(THINKING, thinking)
    return without_none(as_json(message, where))


MAY_BE_EMPTY = frozenset({"assistant", "tool"})
"""Roles whose content may be null: a message with calls, a refusal, a tool without a result."""
MEDIA_KEYS = ("image_url", "audio_url", "input_audio", "video_url")
"""Keys of a part without a type that say what it is."""
THINKING = ("reasoning", "reasoning_content")
"""Names of an assistant's reasoning. Templates read one of them."""
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Types of parts that are text, and the key that holds it."""


def _read_call(call: Any, where: str) -> dict[str, Any]:
    """Return a tool call with an object of arguments, which templates need; OpenAI's API has their JSON text."""
    function = call.get("function") if isinstance(call, dict) and call.get("type") in (None, "function") else None
    if not isinstance(function, dict):
        raise RowError(
            f"{where} has the tool call {call!r:.80}, expected {{type: function, function: {{name, arguments}}}}."
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):  # written by a model: what it was told afterwards can still be asked
            arguments = None
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _read_part(part: Any, where: str, read_part: ReadPart) -> dict[str, Any]:
    part = {"type": "text", "text": part} if isinstance(part, str) else part
    kind = part.get("type") or next(filter(part.get, MEDIA_KEYS), None) if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise RowError(f"{where} is {part!r:.80}, expected an object with a type, such as {{type: text, text: ...}}.")
    if kind not in TEXT_PARTS:
        return read_part({**without_none(part), "type": kind}, where)
    part = dict(part)
    text = part.pop(TEXT_PARTS[kind], None)
    if not isinstance(text, str):
        raise RowError(f"{where} has the text {text!r:.80}, expected text.")
    return {**without_none(part), "type": "text", "text": text}


def cut_first_turn(messages: list[Message]) -> list[Message]:
    """Return the messages up to the first from the user; all if there is none."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages) - 1)
    return messages[: first + 1]


def split_turns(messages: list[Message]) -> list[list[Message]]:
    """Return the messages that each turn adds, without recorded answers and messages after the last of them.

    A turn is what stands between two answers, and has a message from the user. What stands before the first such
    message is kept as it is, a greeting of the assistant's too: no question asks for it. Raises RowError for a
    conversation without a question, or with tools, whose results belong to calls that the model may never make.
    """
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise RowError("The conversation has no message from user, expected at least one.")
    turns = [messages[:first]]
    is_answered = False
    for number, message in enumerate(messages[first:], start=first + 1):
        if message["role"] == "assistant" and not message.get("tool_calls"):
            is_answered = True
        elif message["role"] in SPEAKERS:
            if is_answered and _has_question(turns[-1]):
                turns.append([])
            is_answered = False
            turns[-1].append(message)
        else:
            what = "calls tools" if message["role"] == "assistant" else f"has the role {message['role']!r:.40}"
            raise RowError(
                f"Message {number} {what}, which cannot be sent turn by turn, since the model may not call the same "
                "tools; expected user, assistant, system or developer with text. hint: set prompts.turns to given, "
                "which sends the recorded conversation."
            )
    return turns if _has_question(turns[-1]) else turns[:-1]


def _has_question(turn: list[Message]) -> bool:
    return any(message["role"] == "user" for message in turn)


def without_none(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None}
