"""Audio: every common format becomes one channel at the model's rate, or an error."""

from typing import Any

import numpy as np
import pytest
from media_kit import compress_sound, encode, encode_sound, encode_video, picture, tone

from assayline.errors import MediaError
from assayline.media.sounds import decode_sound, encode_wav


def pitch(samples: Any, rate_hz: int = 16_000) -> float:
    """The loudest frequency, in Hz."""
    spectrum = np.abs(np.fft.rfft(samples))
    return float(np.fft.rfftfreq(len(samples), 1 / rate_hz)[spectrum.argmax()])


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_rates_and_channels_are_brought_to_the_model(rate_hz, channels):
    decoded = decode_sound(encode_sound(tone(0.5, rate_hz, channels), rate_hz))
    assert (decoded.dtype, decoded.ndim) == (np.float32, 1)
    assert len(decoded) == pytest.approx(8_000, abs=2)
    assert pitch(decoded) == pytest.approx(440, abs=3)
    assert np.abs(decoded[500:-500]).max() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("form", "subtype"),
    [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "PCM_U8"), ("FLAC", None), ("OGG", None), ("MP3", None)],
)
def test_formats_are_told_by_their_content(form, subtype):
    decoded = decode_sound(encode_sound(tone(), form=form, subtype=subtype))
    assert pitch(decoded) == pytest.approx(440, abs=3)


def test_aac_is_read_too():
    content = compress_sound(tone(1.0, 44_100), 44_100, "adts", "aac", "fltp")
    assert pitch(decode_sound(content)) == pytest.approx(440, abs=3)


def test_channels_are_averaged():
    samples = tone(0.5, channels=2)
    samples[:, 1] *= -1
    assert np.abs(decode_sound(encode_sound(samples, subtype="FLOAT"))).max() < 1e-4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"RIFF\x00\x00\x00\x00WAVE", "cannot be read"),
        (b"not a sound at all, but text", "cannot be read"),
        (encode(picture()), "cannot be read"),
        (encode_sound(np.zeros((0, 1), np.float32)), "is empty: its file has no samples"),
        (encode_sound(tone(0.01)), "0.010 s long"),
        (encode_sound(np.full((800, 1), np.nan, np.float32), subtype="FLOAT"), "NaN or infinite samples"),
        (encode_video([picture(32, 32)] * 3), "cannot be read"),
    ],
    ids=["nothing", "a header", "text", "a picture", "no samples", "too short", "not a number", "a silent film"],
)
def test_decode_rejects_invalid_audio(content, words):
    with pytest.raises(MediaError, match=words):
        decode_sound(content)


def test_audio_that_is_too_long_is_refused_or_cut_with_a_warning():
    content = encode_sound(tone(2.0))
    with pytest.raises(MediaError, match=r"2\.0 s long, but the model takes at most 1 s.*hint: .*cut_audio"):
        decode_sound(content, most_s=1.0)
    assert len(decode_sound(content, most_s=1.0, cuts=True)) == 16_000
    assert len(decode_sound(content, most_s=2.0)) == 32_000


def test_an_hours_long_sound_is_refused_before_it_is_read():
    content = encode_sound(np.zeros((3_700 * 100, 1), np.float32), rate_hz=100, form="FLAC", subtype="PCM_16")
    assert len(content) < 100_000
    with pytest.raises(MediaError, match="s long, expected at most 3600 s"):
        decode_sound(content)


def test_server_is_sent_the_same_audio():
    samples = decode_sound(encode_sound(tone()))
    assert np.abs(decode_sound(encode_wav(samples, 16_000)) - samples).max() < 1e-4
