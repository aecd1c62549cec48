"""Videos: some frames of them, evenly spaced, with what a model's processing wants to know of where they were."""

import io
from dataclasses import dataclass
from typing import Any

from assayline.errors import MediaError
from assayline.media.images import MOST_PIXELS
from assayline.spec.prompts import MediaSpec

MOST_FRAMES = 1_000_000


@dataclass(frozen=True, slots=True)
class Video:
    """Frames of a video."""

    frames: Any
    """uint8 [frames, height, width, 3]."""
    metadata: dict[str, Any]
    """As vLLM's processing takes it."""
    seconds: float


def decode_video(content: bytes, spec: MediaSpec) -> Video:
    """At most `video_frames` frames. Raises MediaError for what is no video, or has no frames."""
    import av
    import numpy as np

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
    """(frames, seconds), counted by decoding: what headers say of either is often wrong, or missing."""
    total, last_s = 0, 0.0
    for frame in container.decode(stream):
        if frame.width * frame.height > MOST_PIXELS or total >= MOST_FRAMES:
            raise MediaError(f"The video has over {MOST_FRAMES} frames, or over {MOST_PIXELS} pixels each.")
        total += 1
        last_s = max(last_s, float(frame.time or 0.0) + float((frame.duration or 0) * (frame.time_base or 0)))
    if not total:
        raise MediaError("The video has no frames.")
    rate = float(stream.average_rate or 0)
    return total, last_s or (total / rate if rate else 0.0)


def _take(frames: Any, wanted: list[int], spec: MediaSpec) -> list[Any]:
    import numpy as np

    taken = []
    for number, frame in enumerate(frames):
        if number in wanted:
            taken.append(np.asarray(_shrink_frame(frame, spec)))
    return taken


def _shrink_frame(frame: Any, spec: MediaSpec) -> Any:
    from assayline.media.images import shrink_image

    return shrink_image(frame.to_image(), spec)
