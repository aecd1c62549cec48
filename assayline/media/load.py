"""Loading of media: from a reference to the input of a model's processor, with the numbers that metrics use.

Media are loaded next to the engine, and only for requests in flight: a reference is a line, an image is megabytes. A
synthetic image or audio clip is generated from its reference, and is the same each time.
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
    """Audio that a model takes."""

    rate_hz: int = RATE_HZ
    longest_s: float | None = None
    """None: any length, or the model states no limit."""


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """Columns of a completion that describe its media. None if it has no media of that kind."""

    images: int | None = None
    image_pixels: int | None = None
    audios: int | None = None
    audio_s: float | None = None
    videos: int | None = None
    video_frames: int | None = None
    video_s: float | None = None
    media_bytes: int | None = None

    def add(self, other: "MediaFacts") -> "MediaFacts":
        """Return the sum of both, field by field."""
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
    """Load the media of a prompt in order, and sum their facts. Raises MediaError that names the unusable one."""
    loaded, facts = [], MediaFacts()
    for number, one in enumerate(media, start=1):
        try:
            loaded.append(_load(one, spec, hearing))
        except MediaError as error:
            of = f", {number} of {len(media)}" if len(media) > 1 else ""
            where = "" if one["path"] in str(error) else f" Its path is {one['path']:.300}{of}."
            cause, hint, step = str(error).partition(" hint: ")
            raise MediaError(f"{cause}{where}{hint}{step}") from None
        facts = facts.add(loaded[-1].facts)
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
