"""Media of a row: from its columns and parts of its messages to parts in their places.

    columns (images: page)  ──►  references, in order  ──►  marks in the text, or parts without content, take the next
    parts {type: image_url, …}  ──►  a reference each, in place

The result is parts of the form `{"type": "image", "media": <reference>}`. Media that no mark and no part takes stand
before the text of the last user message. Each medium is used exactly once; otherwise the row is an error row, because
an answer without its image would be wrong without notice.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from assayline.errors import MediaError
from assayline.media.references import MediaReader
from assayline.prompts.row import Message, RowError, find_column
from assayline.records import Media, MediaKind
from assayline.spec.prompts import Columns, MediaSpec

Waiting = dict[MediaKind, dict[int, Media]]
"""Media of the row's columns that no place has taken yet, by number."""

PART_KINDS: dict[str, MediaKind] = {
    "image": "image", "image_url": "image", "input_image": "image",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
    "video": "video", "video_url": "video",
}  # fmt: skip
"""Types of content parts that OpenAI's interface and Hugging Face's chat templates have, and what each is."""

SETTINGS: dict[MediaKind, str] = {"image": "images", "audio": "audios", "video": "videos"}
_NONCE = secrets.token_hex(8)
_MARK = rf"\ue000{_NONCE}:(?P<kind>image|audio|video):(?P<at>\d*)\ue001"
"""Text that a template prints for a medium; it cannot occur in a prompt file."""


class MediaPlacement:
    """Finds and places the media of rows, by one spec."""

    def __init__(self, columns: Columns, spec: MediaSpec, reader: MediaReader) -> None:
        self._columns = columns.media
        self._reader = reader
        self._given = {text: kind for kind, text in spec.marks.items()}
        self._pattern = re.compile("|".join([_MARK, *(f"({re.escape(text)})" for text in self._given)]))

    def read_columns(self, row: dict[str, Any]) -> dict[MediaKind, list[Media]]:
        """Return the references of the row's columns, by kind, in order. Raises RowShapeError or RowError."""
        return {
            kind: [
                media
                for name in names
                for media in self._read(kind, find_column(row, name, f"prompts.columns.{SETTINGS[kind]}"), row)
            ]
            for kind, names in self._columns.items()
        }

    def list_variables(self, row: dict[str, Any], media: dict[MediaKind, list[Media]]) -> dict[str, Any]:
        """Return the variables of a template: `{{ image }}` is the row's next image, a column's name that column's."""
        variables: dict[str, Any] = {
            kind: _mark(kind) if media[kind] else "" for kind in self._columns if kind not in row
        }
        for kind, names in self._columns.items():
            at = 0
            for name in names:
                value = row[name]
                count = len([item for item in value if item is not None]) if isinstance(value, list) else bool(value)
                marks = [_mark(kind, at + number) for number in range(count)]
                variables[name] = marks if isinstance(value, list) else "".join(marks)
                at += count
        return variables

    def read_part(self, part: dict[str, Any], where: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return a content part with its reference, or with the next one of the row's columns if it has no content."""
        kind = PART_KINDS.get(part["type"])
        if kind is None:
            raise RowError(
                f"{where} is of type {part['type']!r:.40}, expected text or one of {', '.join(sorted(PART_KINDS))}."
            )
        value = _find_content(part, kind)
        if value is None:
            return {"type": kind}
        found = self._read(kind, value, row)
        if len(found) != 1:
            raise RowError(f"{where} holds {len(found)} media, expected one.")
        return {"type": kind, "media": found[0]}

    def place(self, messages: list[Message], media: dict[MediaKind, list[Media]]) -> list[Message]:
        """Return the messages with all media in their places. Raises RowError if places and media do not match."""
        waiting: Waiting = {kind: dict(enumerate(found)) for kind, found in media.items()}
        if not self._given and not any(waiting.values()) and all(isinstance(m.get("content"), str) for m in messages):
            return messages
        placed: set[MediaKind] = set()
        return _put_rest([self._fill_message(message, waiting, placed) for message in messages], waiting, placed)

    def _fill_message(self, message: Message, waiting: Waiting, placed: set[MediaKind]) -> Message:
        content = message.get("content")
        if content is None:
            return message
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        new = [piece for part in parts for piece in self._fill(part, waiting, placed)]
        is_plain = isinstance(content, str) and all(part["type"] == "text" for part in new)
        return {**message, "content": "".join(part["text"] for part in new) if is_plain else new}

    def _fill(self, part: dict[str, Any], waiting: Waiting, placed: set[MediaKind]) -> Iterator[dict[str, Any]]:
        if part["type"] != "text":
            if "media" not in part:
                placed.add(part["type"])
                part = {"type": part["type"], "media": _take(part["type"], None, waiting)}
            yield part
            return
        text, end = part["text"], 0
        for found in self._pattern.finditer(text):
            if found.start() > end:
                yield {**part, "text": text[end : found.start()]}
            kind = self._given.get(found[0]) or PART_KINDS[found["kind"]]
            placed.add(kind)
            yield {"type": kind, "media": _take(kind, int(found["at"]) if found["at"] else None, waiting)}
            end = found.end()
        if end < len(text) or not text:
            yield {**part, "text": text[end:]}

    def _read(self, kind: MediaKind, value: Any, row: dict[str, Any]) -> list[Media]:
        try:
            return self._reader.read(kind, value, getattr(row, "folder", None))
        except MediaError as error:
            raise RowError(str(error), error.kind) from None


def _find_content(part: dict[str, Any], kind: MediaKind) -> Any:
    """Return the content of a part, under any of the names in use for it; None if it has none."""
    names = (part["type"], kind, f"{kind}_url", "url", "path")
    value = next((part[name] for name in names if part.get(name)), None)
    if isinstance(value, dict) and isinstance(value.get("data"), str):  # OpenAI's input_audio
        return f"data:;base64,{value['data']}"
    return f"data:;base64,{part['base64']}" if value is None and isinstance(part.get("base64"), str) else value


def separate_media(messages: list[Message]) -> tuple[list[Message], list[Media] | None]:
    """Return the messages with parts that name only their kind, and the references in order."""
    media = [part["media"] for message in messages for part in _list_parts(message) if "media" in part]
    return [_replace_media(message, lambda _: {}) for message in messages] if media else messages, media or None


def identify_media(messages: list[Message]) -> list[Message]:
    """Return the messages with digests instead of references, as a file's location is not part of the question."""
    return [_replace_media(message, lambda media: {"digest": media["digest"]}) for message in messages]


def _list_parts(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _replace_media(message: Message, write: Callable[[Media], dict[str, str]]) -> Message:
    parts = _list_parts(message)
    if not any("media" in part for part in parts):
        return message
    written = [{"type": part["type"], **write(part["media"])} if "media" in part else part for part in parts]
    return {**message, "content": written}


def _mark(kind: MediaKind, at: int | None = None) -> str:
    return f"\ue000{_NONCE}:{kind}:{'' if at is None else at}\ue001"


def _take(kind: MediaKind, at: int | None, waiting: Waiting) -> Media:
    left = waiting.get(kind, {})
    number = next(iter(left), None) if at is None else at
    if number not in left:
        raise RowError(
            f"The prompt has a place for one more {kind} than the row has, or one twice. Expected one place for each: "
            f"see prompts.columns.{SETTINGS[kind]} and prompts.media.marks.",
            "media_error",
        )
    return left.pop(number)


def _put_rest(messages: list[Message], waiting: Waiting, placed: set[MediaKind]) -> list[Message]:
    for kind, left in waiting.items():
        if left and kind in placed:
            raise RowError(
                f"{len(left)} of the row's {SETTINGS[kind]} have no place in the prompt, and others have. Expected a "
                "place for each, or for none.",
                "media_error",
            )
    rest = [{"type": kind, "media": one} for kind, left in waiting.items() for one in left.values()]
    if not rest:
        return messages
    at = next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "user"), None)
    if at is None:
        raise RowError("The row has media, and no message of the user that they could stand in.", "media_error")
    content = messages[at].get("content")
    text = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    return [*messages[:at], {**messages[at], "content": [*rest, *text]}, *messages[at + 1 :]]
