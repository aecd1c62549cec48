"""Loading of media: from a reference to the input of a model's processor, with the numbers that metrics use.

Media are loaded next to the engine, and only for requests in flight: a reference is a line, an image is megabytes. A
synthetic image or audio clip is generated from its reference, and is the same each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from assayline.digests import digest_bytes, digest_text
from assayline.errors import MediaError
from assayline.media.pictures import decode_image, decode_video
from assayline.media.sounds import RATE_HZ, decode_sound
from assayline.records import Media, MediaKind
from assayline.spec.prompts import MediaSpec

LARGEST_FILE_BYTES = 2**30
SCHEME = "synthetic:"


@dataclass(frozen=True, slots=True)
class Hearing:
    """Audio that a model takes."""

    rate_hz: int = RATE_HZ
    longest_s: float | None = None
    """None: any length, or the model states no limit."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One medium, ready for a model."""

    media: Media
    value: Any
    """image: `PIL.Image` in RGB; audio: float32 [samples] at the model's rate; video: `videos.Video`."""
    facts: dict[str, int | float]
    """Columns of a completion that describe it, such as images and image_pixels."""


def load_all(media: Sequence[Media], spec: MediaSpec, hearing: Hearing) -> tuple[list[Loaded], dict[str, int | float]]:
    """Load the media of a prompt in order, and sum their facts. Raises MediaError that names the unusable one."""
    loaded: list[Loaded] = []
    facts: dict[str, int | float] = {}
    for number, one in enumerate(media, start=1):
        try:
            loaded.append(_load(one, spec, hearing))
        except MediaError as error:
            of = f", {number} of {len(media)}" if len(media) > 1 else ""
            where = "" if one["path"] in str(error) else f" Its path is {one['path']:.300}{of}."
            cause, hint, step = str(error).partition(" hint: ")
            raise MediaError(f"{cause}{where}{hint}{step}") from None
        for name, value in loaded[-1].facts.items():
            facts[name] = facts.get(name, 0) + value
    return loaded, facts


def read_content(media: Media) -> bytes:
    """Read the file of a reference. Raises MediaError if it cannot be read, is too large or has changed."""
    path = Path(media["path"])
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise MediaError(f"{path} has {size} bytes, expected at most {LARGEST_FILE_BYTES}.")
        content = path.read_bytes()
    except OSError as error:
        raise MediaError(f"{path} cannot be read: {error.strerror or error}.") from None
    if digest_bytes(content) != media["digest"]:
        raise MediaError(f"{path} changed after the prompts were read. hint: restore the file.")
    return content


def _load(media: Media, spec: MediaSpec, hearing: Hearing) -> Loaded:
    made = is_synthetic(media)
    content = b"" if made else read_content(media)
    match media["kind"]:
        case "image":
            image = make_image(media) if made else decode_image(content, spec)
            pixels = image.width * image.height
            return Loaded(media, image, {"images": 1, "image_pixels": pixels, "media_bytes": len(content)})
        case "audio":
            sound = (
                make_sound(media, hearing.rate_hz)
                if made
                else decode_sound(content, hearing.rate_hz, hearing.longest_s, spec.cut_audio)
            )
            audio_s = len(sound) / hearing.rate_hz
            return Loaded(media, sound, {"audios": 1, "audio_s": audio_s, "media_bytes": len(content)})
        case "video":
            video = decode_video(content, spec)
            size = {"video_frames": len(video.frames), "video_s": video.seconds, "media_bytes": len(content)}
            return Loaded(media, video, {"videos": 1, **size})


def refer_synthetic(kind: MediaKind, **values: int | float | str) -> Media:
    """Return the reference of a medium to generate.

    Values of an image, which is noise: width, height and seed; of audio: seconds and seed.
    """
    path = f"{SCHEME}{kind}?{urlencode(values)}"
    return Media(kind=kind, path=path, digest=digest_text(path))


def is_synthetic(media: Media) -> bool:
    """Return True if the medium is generated, not read."""
    return media["path"].startswith(SCHEME)


def make_image(media: Media) -> Any:
    """Generate the `PIL.Image` that a reference describes."""
    import numpy as np
    from PIL import Image

    values = _values(media)
    width, height = int(values["width"]), int(values["height"])
    dice = np.random.default_rng(int(values["seed"]))
    return Image.fromarray(dice.integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_sound(media: Media, rate_hz: int) -> Any:
    """Generate the audio that a reference describes, quiet noise, as a float32 array [samples]."""
    import numpy as np

    values = _values(media)
    dice = np.random.default_rng(int(values["seed"]))
    return (dice.standard_normal(max(1, round(float(values["seconds"]) * rate_hz))) * 0.1).astype(np.float32)


def _values(media: Media) -> dict[str, str]:
    return dict(parse_qsl(media["path"].partition("?")[2]))
