"""Synthetic media: pictures and sounds made from a line of text, each different, for measuring speed.

Nothing is stored: the reference says what to make, and is made anew by whoever needs it, the same each time.
"""

from typing import Any
from urllib.parse import parse_qsl, urlencode

from assayline.digests import digest_text
from assayline.records import Media, MediaKind

SCHEME = "synthetic:"


def refer_synthetic(kind: MediaKind, **values: int | float | str) -> Media:
    """A medium to be made. image: width, height, content (noise, gradient or solid) and seed; audio: seconds, seed."""
    path = f"{SCHEME}{kind}?{urlencode(values)}"
    return Media(kind=kind, path=path, digest=digest_text(path))


def is_synthetic(media: Media) -> bool:
    """Whether it is to be made, and not read."""
    return media["path"].startswith(SCHEME)


def make_image(media: Media) -> Any:
    """The `PIL.Image` that a reference describes."""
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
    """The float32 array [samples] that a reference describes: quiet noise."""
    import numpy as np

    values = _values(media)
    dice = np.random.default_rng(int(values["seed"]))
    return (dice.standard_normal(max(1, round(float(values["seconds"]) * rate_hz))) * 0.1).astype(np.float32)


def _values(media: Media) -> dict[str, str]:
    return dict(parse_qsl(media["path"].partition("?")[2]))
