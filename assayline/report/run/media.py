"""Pictures and sounds of a prompt on the page: small copies made here, never the files themselves.

A file may be an SVG with a script in it, hold a place in its EXIF, or be two formats at once. What is shown has been
decoded to pixels or samples and written anew, so nothing else of the file gets onto the page.
"""

import base64
import io
import json
from pathlib import Path
from typing import Any

from assayline.errors import MediaError
from assayline.media.load import Hearing, Loaded, load_all
from assayline.media.references import find_media
from assayline.media.sounds import encode_wav
from assayline.records import Media
from assayline.report.document import Exhibit
from assayline.spec.media import MediaSpec

MOST_EXHIBITS = 6
"""Per prompt; the rest is counted."""

EDGE_PIXELS = 240
JPEG_QUALITY = 80
SOUND_S = 10.0
SOUND_RATE_HZ = 8_000


def show_media(media_json: str | None, run_dir: Path | None) -> list[Exhibit]:
    """What the page shows of a request's media; in words, where they are not to be had any more."""
    if media_json is None or run_dir is None:
        return []
    media: list[Media] = json.loads(media_json)
    shown = [_show(one, run_dir, number) for number, one in enumerate(media[:MOST_EXHIBITS], start=1)]
    if len(media) > MOST_EXHIBITS:
        shown.append(Exhibit("note", f"and {len(media) - MOST_EXHIBITS:,} more"))
    return shown


def _show(media: Media, run_dir: Path, number: int) -> Exhibit:
    name = f"{media['kind']} {number}"
    spec = MediaSpec(cut_audio=True, video_frames=1)
    try:
        (loaded,), _ = load_all([find_media(media, run_dir)], spec, Hearing(SOUND_RATE_HZ, SOUND_S))
    except MediaError as error:
        return Exhibit("note", f"{name} cannot be shown: {error}")
    if media["kind"] == "audio":
        seconds = len(loaded.value) / SOUND_RATE_HZ
        words = f"{name}, its first {SOUND_S:g} s" if seconds >= SOUND_S else f"{name}, {seconds:.1f} s"
        return Exhibit("audio", words, _data_uri("audio/wav", encode_wav(loaded.value, SOUND_RATE_HZ)))
    return Exhibit("image", _describe(name, loaded), _data_uri("image/jpeg", _shrink(loaded)))


def _describe(name: str, loaded: Loaded) -> str:
    if loaded.media["kind"] == "video":
        return f"{name}, its first frame of {loaded.value.seconds:.1f} s"
    return f"{name}, {loaded.value.width} × {loaded.value.height} pixels"


def _shrink(loaded: Loaded) -> bytes:
    from PIL import Image

    image: Any = loaded.value if loaded.media["kind"] == "image" else Image.fromarray(loaded.value.frames[0])
    small = image.copy()
    small.thumbnail((EDGE_PIXELS, EDGE_PIXELS))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=JPEG_QUALITY)
    return content.getvalue()


def _data_uri(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
