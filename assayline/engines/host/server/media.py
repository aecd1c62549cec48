"""Media for a server: content parts of OpenAI's interface, with the content inside them.

Never a path: what a prompt file names is read here, with this user's rights, and no server is made to read its own
files or to fetch a URL.
"""

import base64
from dataclasses import dataclass

from assayline.media.load import Loaded, read_content
from assayline.media.pictures import encode_png
from assayline.media.sounds import RATE_HZ, encode_wav
from assayline.records import Json, Request


@dataclass(frozen=True, slots=True)
class Filled:
    """A request's messages with its media in them."""

    messages: list[dict[str, Json]]
    sizes: tuple[object, ...]
    """Of its media, in order: where they are equal, a model makes the same number of tokens of them."""
    text_bytes: int


def fill_messages(request: Request, loaded: list[Loaded]) -> Filled:
    """The request's messages with each part of a medium filled, in order."""
    texts = [text for message in request.messages or () for text in _list_texts(message.get("content"))]
    return Filled(_write_messages(request, loaded), tuple(map(_size_of, loaded)), sum(len(t.encode()) for t in texts))


def _list_texts(content: Json) -> list[str]:
    if isinstance(content, list):
        return [part["text"] for part in content if part["type"] == "text"]
    return [content] if isinstance(content, str) else []


def _size_of(loaded: Loaded) -> object:
    match loaded.media["kind"]:
        case "image":
            return "image", loaded.value.size
        case "audio":
            return "audio", len(loaded.value)
    return "video", loaded.media["digest"]  # the server chooses frames of it


def _write_messages(request: Request, loaded: list[Loaded]) -> list[dict[str, Json]]:
    waiting = iter(loaded)
    return [
        {
            **message,
            "content": [part if part["type"] == "text" else _write_part(next(waiting)) for part in message["content"]],
        }
        if isinstance(message.get("content"), list)
        else message
        for message in request.messages or ()
    ]


def _write_part(loaded: Loaded) -> dict[str, Json]:
    media = loaded.media
    match media["kind"]:
        case "image":
            return {"type": "image_url", "image_url": {"url": _data_uri("image/png", encode_png(loaded.value))}}
        case "audio":
            data = base64.b64encode(encode_wav(loaded.value, RATE_HZ)).decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {"type": "video_url", "video_url": {"url": _data_uri("video/mp4", read_content(media))}}


def _data_uri(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
