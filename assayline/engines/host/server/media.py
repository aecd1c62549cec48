"""Media for a server: content parts of OpenAI's interface, with the content inside them.

Never a path: what a prompt file names is read here, with this user's rights, and no server is made to read its own
files or to fetch a URL.
"""

import base64

from assayline.media.images import encode_png
from assayline.media.load import Loaded, read_content
from assayline.media.sounds import RATE_HZ, encode_wav
from assayline.records import Json, Request


def write_messages(request: Request, loaded: list[Loaded]) -> list[dict[str, Json]]:
    """The request's messages with each part of a medium filled, in order."""
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
