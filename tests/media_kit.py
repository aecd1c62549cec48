"""Images and audio that tests make, so that they need no files."""

import io
import wave
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

from assayline.media.sounds import encode_wav

RED, BLUE = (220, 30, 30), (30, 30, 220)


def picture(width: int = 20, height: int = 10, mode: str = "RGB", colour: Any = RED) -> Image.Image:
    """An image of one colour."""
    return Image.new(mode, (width, height), colour)


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """A file of it."""
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


def tone(seconds: float = 0.5, rate_hz: int = 16_000, channels: int = 1, hz: float = 440.0) -> Any:
    """float32 [frames, channels] of a tone that is as loud in all channels."""
    wave = 0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)
    return np.repeat(wave[:, None], channels, axis=1).astype(np.float32)


CODECS = {"FLAC": ("flac", "flac", "s16"), "OGG": ("ogg", "libopus", "s16"), "MP3": ("mp3", "libmp3lame", "fltp")}


def encode_sound(samples: Any, rate_hz: int = 16_000, form: str = "WAV", subtype: str | None = None) -> bytes:
    """A file of it: WAV, with samples of that subtype, or compressed."""
    if form in CODECS:
        return compress_sound(samples, rate_hz, *CODECS[form])
    if subtype == "FLOAT":
        return encode_wav(samples, rate_hz, is_float=True)
    width, data = (1, samples * 127 + 128) if subtype == "PCM_U8" else (2, samples * 32767)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(np.round(data).astype("u1" if width == 1 else "<i2").tobytes())
    return content.getvalue()


def compress_sound(samples: Any, rate_hz: int, form: str, codec: str, kind: str) -> bytes:
    """A file of that container and codec, mono."""
    content = io.BytesIO()
    with av.open(content, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate_hz, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples.T.copy(), format="fltp", layout="mono")
        frame.sample_rate = rate_hz
        into = av.AudioResampler(format=kind, layout="mono", rate=rate_hz, frame_size=stream.frame_size or 1024)
        for part in [*into.resample(frame), *into.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return content.getvalue()


def encode_video(frames: list[Image.Image], rate: int = 10, form: str = "mp4") -> bytes:
    """A video of images of one size."""
    content = io.BytesIO()
    with av.open(content, "w", format=form) as container:
        stream = container.add_stream("mpeg4", rate=Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = *frames[0].size, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode(None))
    return content.getvalue()
