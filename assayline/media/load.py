"""From a reference to what a model's processing takes, with the numbers that metrics are made of.

It happens where the engine is, and only for requests in flight: a reference is a line, a picture is megabytes. The
reference of a synthetic picture or sound describes it, and it is made from that, the same each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """What sounds a model takes."""

    rate_hz: int = RATE_HZ
    longest_s: float | None = None
    """None: it takes any length, or does not say."""


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """The columns of a completion that say what its media were; None where there are none of a kind."""

    images: int | None = None
    image_pixels: int | None = None
    audios: int | None = None
    audio_s: float | None = None
    videos: int | None = None
    video_frames: int | None = None
    video_s: float | None = None
    media_bytes: int | None = None

    def add(self, other: "MediaFacts") -> "MediaFacts":
        """Both together."""
        names = (name for name in self.__slots__ if getattr(other, name) is not None)
        return replace(self, **{name: (getattr(self, name) or 0) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class Loaded:
    """One medium, ready for a model."""

    media: Media
    value: Any
    """image: `PIL.Image` in RGB; audio: float32 [samples] at the model's rate; video: `videos.Video`."""
    facts: MediaFacts


def load_all(media: Sequence[Media], spec: MediaSpec, hearing: Hearing) -> tuple[list[Loaded], MediaFacts]:
    """Everything that a prompt refers to, in its order, and the sums. Raises MediaError, saying which one it is."""
    loaded, facts = [], MediaFacts()
    for number, one in enumerate(media, start=1):
        try:
            loaded.append(_load(one, spec, hearing))
        except MediaError as error:
            of = f", {number} of {len(media)}" if len(media) > 1 else ""
            where = "" if one["path"] in str(error) else f" It is {one['path']:.300}{of}."
            raise MediaError(f"{error}{where}") from None
        facts = facts.add(loaded[-1].facts)
    return loaded, facts


def read_content(media: Media) -> bytes:
    """Return the bytes of a reference. Raises MediaError if they are missing or have changed."""
    path = Path(media["path"])
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise MediaError(f"{path} has {size} bytes, expected at most {LARGEST_FILE_BYTES}.")
        content = path.read_bytes()
    except OSError as error:
        raise MediaError(f"{path} cannot be read: {error.strerror or error}.") from None
    if digest_bytes(content) != media["digest"]:
        raise MediaError(f"{path} is not what it was when the prompts were read: its content changed.")
    return content


def _load(media: Media, spec: MediaSpec, hearing: Hearing) -> Loaded:
    made = is_synthetic(media)
    content = b"" if made else read_content(media)
    match media["kind"]:
        case "image":
            image = make_image(media) if made else decode_image(content, spec)
            facts = MediaFacts(images=1, image_pixels=image.width * image.height, media_bytes=len(content))
            return Loaded(media, image, facts)
        case "audio":
            sound = (
                make_sound(media, hearing.rate_hz)
                if made
                else decode_sound(content, hearing.rate_hz, hearing.longest_s, spec.cut_audio)
            )
            facts = MediaFacts(audios=1, audio_s=len(sound) / hearing.rate_hz, media_bytes=len(content))
            return Loaded(media, sound, facts)
        case "video":
            video = decode_video(content, spec)
            facts = MediaFacts(
                videos=1, video_frames=len(video.frames), video_s=video.seconds, media_bytes=len(content)
            )
            return Loaded(media, video, facts)


def refer_synthetic(kind: MediaKind, **values: int | float | str) -> Media:
    """Return a synthetic medium. image: width, height, content (noise, gradient, solid), seed; audio: seconds, seed."""
    path = f"{SCHEME}{kind}?{urlencode(values)}"
    return Media(kind=kind, path=path, digest=digest_text(path))


def is_synthetic(media: Media) -> bool:
    """Return whether the medium is generated, not read."""
    return media["path"].startswith(SCHEME)


def make_image(media: Media) -> Any:
    """Return the `PIL.Image` that a reference describes."""
    import numpy as np
    from PIL import Image

    values = _values(media)
    width, height = int(values["width"]), int(values["height"])
    dice = np.random.default_rng(int(values["seed"]))
    match values["content"]:
        case "noise":
            pixels = dice.integers(0, 256, (height, width, 3), dtype=np.uint8)
        case "gradient":
            low, high = dice.uniform(0, 255, (2, 3))
            across = np.linspace(0, 1, width)[None, :, None] * np.ones((height, 1, 1))
            pixels = (low + (high - low) * across).astype(np.uint8)
        case _:
            pixels = np.broadcast_to(dice.integers(0, 256, 3, dtype=np.uint8), (height, width, 3)).copy()
    return Image.fromarray(pixels)


def make_sound(media: Media, rate_hz: int) -> Any:
    """Return the float32 array [samples] that a reference describes: quiet noise."""
    import numpy as np

    values = _values(media)
    dice = np.random.default_rng(int(values["seed"]))
    return (dice.standard_normal(max(1, round(float(values["seconds"]) * rate_hz))) * 0.1).astype(np.float32)


def _values(media: Media) -> dict[str, str]:
    return dict(parse_qsl(media["path"].partition("?")[2]))
