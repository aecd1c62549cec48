"""Images and videos: from any common format to the upright RGB that a model's processor takes.

Processors of vision models differ in how they treat transparency, palettes, 16 bits and rotation tags, and some fail or
are wrong. So this module does it once, the same for every model and engine. A video becomes evenly spaced frames.
"""

import io
import math
import warnings
from dataclasses import dataclass
from typing import Any

from assayline.errors import MediaError
from assayline.media.sounds import import_codec
from assayline.spec.prompts import MediaSpec

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 178_956_970
"""A larger image is treated as an attack. The limit is that of Pillow and vLLM."""

ANIMATED = frozenset({"GIF", "PNG", "WEBP"})
"""Formats whose further frames are an animation. Those of a TIFF are pages, those of a phone's JPEG (MPO) a preview."""

BACKGROUND = (255, 255, 255)
"""Colour behind transparent pixels."""

MOST_FRAMES = 1_000_000


def decode_image(content: bytes, spec: MediaSpec) -> Any:
    """Decode an upright RGB `PIL.Image` of at most `max_pixels`. Raises MediaError if it is invalid or animated."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            _check(opened)
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)  # without in_place, an upright image is copied
            image = _as_rgb(opened)
    except MediaError:
        raise
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise MediaError(f"The image cannot be read: {_reason(error, content)}.") from None
    return shrink_image(image, spec)


def _check(image: Any) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise MediaError(f"The image is {width} x {height} pixels, expected at least 1 x 1.")
    if width * height > MOST_PIXELS:
        raise MediaError(f"The image is {width} x {height} pixels, expected at most {MOST_PIXELS} in total.")
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format in ANIMATED:
        raise MediaError(
            f"The image is animated: {frames} frames of a {image.format}, expected one. hint: save one frame."
        )


def _as_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.getextrema()[1] > 255):
        import numpy as np

        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise MediaError("The image has floating-point pixels of unknown range. hint: save it with 8 bits a channel.")
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        background = Image.new("RGB", image.size, BACKGROUND)
        background.paste(layered, mask=layered.getchannel("A"))
        return background
    return image if image.mode == "RGB" else image.convert("RGB")


def encode_png(image: Any) -> bytes:
    """Encode an image as a PNG file, without loss. Compression is low, because the file is read once."""
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return content.getvalue()


def shrink_image(image: Any, spec: MediaSpec) -> Any:
    """Return the image, or a smaller one of at most `max_pixels` in the same proportions."""
    from PIL import Image

    width, height = image.size
    if spec.max_pixels is None or width * height <= spec.max_pixels:
        return image
    scale = math.sqrt(spec.max_pixels / (width * height))
    size = max(1, math.floor(width * scale)), max(1, math.floor(height * scale))
    return image.resize(size, Image.Resampling.LANCZOS)


def _reason(error: Exception, content: bytes) -> str:
    if "cannot identify" in str(error):
        return f"{len(content)} bytes that begin {content[:12]!r} are none of {', '.join(FORMATS)}"
    return f"{type(error).__name__}: {str(error).rstrip('.'):.200}"


@dataclass(frozen=True, slots=True)
class Video:
    """Frames of a video."""

    frames: Any
    """uint8 [frames, height, width, 3]."""
    metadata: dict[str, Any]
    """In the form that vLLM's processor takes."""
    seconds: float


def decode_video(content: bytes, spec: MediaSpec) -> Video:
    """Decode at most `video_frames` frames. Raises MediaError if it is not a video, has no frames or is too large."""
    import numpy as np

    av = import_codec("av")
    try:
        with av.open(io.BytesIO(content)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            total, seconds = _measure(container, stream)
            wanted = sorted({round(float(at)) for at in np.linspace(0, total - 1, min(total, spec.video_frames))})
            container.seek(0)
            pictures = _take(container.decode(stream), wanted, spec)
    except MediaError:
        raise
    except (av.FFmpegError, IndexError, ValueError, OSError) as error:
        raise MediaError(f"The video cannot be read: {type(error).__name__}: {error!s:.200}.") from None
    metadata = {
        "total_num_frames": total,
        "fps": total / seconds if seconds else None,
        "duration": seconds,
        "frames_indices": wanted[: len(pictures)],
        "video_backend": "pyav",
        "do_sample_frames": False,
    }
    return Video(np.stack(pictures), metadata, seconds)


def _measure(container: Any, stream: Any) -> tuple[int, float]:
    """Return (frames, seconds), counted by decoding, because headers are often wrong or incomplete."""
    total, last_s = 0, 0.0
    for frame in container.decode(stream):
        if frame.width * frame.height > MOST_PIXELS or total >= MOST_FRAMES:
            raise MediaError(
                f"The video has more than {MOST_FRAMES} frames, or frames of more than {MOST_PIXELS} pixels."
            )
        total += 1
        last_s = max(last_s, float(frame.time or 0.0) + float((frame.duration or 0) * (frame.time_base or 0)))
    if not total:
        raise MediaError("The video has no frames.")
    rate = float(stream.average_rate or 0)
    return total, last_s or (total / rate if rate else 0.0)


def _take(frames: Any, wanted: list[int], spec: MediaSpec) -> list[Any]:
    import numpy as np

    return [np.asarray(shrink_image(frame.to_image(), spec)) for number, frame in enumerate(frames) if number in wanted]
