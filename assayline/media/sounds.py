"""Audio: from any common format to one channel of 32-bit floats at the model's own rate.

Engines resample with packages that are often missing, and silently cut audio that is too long. This module resamples
with soxr, and cuts only if the spec allows it.
"""

import importlib
import io
import itertools
import struct
from typing import Any

from assayline.errors import CLIENT, MediaError

RATE_HZ = 16_000
"""Rate that nearly all audio models were trained on."""

LONGEST_S = 3600.0
"""Longer audio is treated as a mistake: an hour at 16 kHz is 230 MB."""

SHORTEST_S = 0.02
"""Two frames of the usual spectrogram; shorter audio has nothing to hear."""


def import_codec(name: str) -> Any:
    """Import a package that decodes media. Raises MediaError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MediaError(f"The package {name}, which decodes media, is not installed. hint: {CLIENT}") from None


def decode_sound(content: bytes, rate_hz: int = RATE_HZ, most_s: float | None = None, cuts: bool = False) -> Any:
    """Decode audio to a float32 array [samples] at `rate_hz`. Longer than `most_s`, it is cut if `cuts`, else refused.

    Raises MediaError if it is not audio, is empty, too short or too long, or has NaN or infinite samples.
    """
    import numpy as np

    samples, given_hz = _read_frames(content)
    if len(samples) < SHORTEST_S * given_hz:
        raise MediaError(f"The audio is {len(samples) / given_hz:.3f} s long, expected at least {SHORTEST_S} s.")
    mono = samples.mean(axis=1, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise MediaError("The audio has NaN or infinite samples. hint: export the file again.")
    if given_hz != rate_hz:
        soxr = import_codec("soxr")
        mono = soxr.resample(mono, given_hz, rate_hz).astype(np.float32, copy=False)
    if most_s is not None and len(mono) > most_s * rate_hz:
        if not cuts:
            raise MediaError(
                f"The audio is {len(mono) / rate_hz:.1f} s long, but the model takes at most {most_s:g} s. hint: "
                "shorten it, or set prompts.media.cut_audio to true."
            )
        mono = mono[: int(most_s * rate_hz)]
    return mono


def encode_wav(samples: Any, rate_hz: int, *, is_float: bool = False) -> bytes:
    """Encode samples [frames] or [frames, channels] as a WAV file: 16-bit, as servers take it, or 32-bit floats."""
    import numpy as np

    channels = samples.shape[1] if samples.ndim == 2 else 1
    if is_float:
        form, data = 3, samples.astype("<f4").tobytes()
    else:
        form, data = 1, np.round(samples.clip(-1.0, 1.0) * 32767).astype("<i2").tobytes()
    width = channels * (4 if is_float else 2)
    described = struct.pack("<HHIIHH", form, channels, rate_hz, rate_hz * width, width, width // channels * 8)
    head = struct.pack("<4sI4s4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16)
    return b"".join([head, described, struct.pack("<4sI", b"data", len(data)), data])


def _read_frames(content: bytes) -> tuple[Any, int]:
    """Return (float32 [frames, channels], rate in Hz)."""
    import numpy as np

    av = import_codec("av")
    blocks, frames = [], 0
    try:
        with av.open(io.BytesIO(content)) as container:
            stream = container.streams.audio[0]
            rate_hz = int(stream.rate)
            plain = av.AudioResampler(format="fltp", rate=rate_hz)  # converts the sample format only
            for frame in itertools.chain(container.decode(stream), [None]):
                for part in plain.resample(frame):
                    blocks.append(part.to_ndarray().T)
                    frames += len(blocks[-1])
                    _check_length(frames / rate_hz)
    except (av.FFmpegError, IndexError, ValueError, OSError) as error:
        raise MediaError(f"The audio cannot be read: {type(error).__name__}: {error!s:.200}.") from None
    if not blocks:
        raise MediaError("The audio is empty: its file has no samples.")
    return np.concatenate(blocks).astype(np.float32, copy=False), rate_hz


def _check_length(seconds: float) -> None:
    if seconds > LONGEST_S:
        raise MediaError(f"The audio is {seconds:.0f} s long, expected at most {LONGEST_S:.0f} s.")
