"""Synthetic media: made from their references, each different, the same each time."""

from typing import Any

import numpy as np
import pytest

from assayline.errors import MediaError
from assayline.media.load import Hearing, load_all, make_image, make_sound, refer_synthetic
from assayline.spec.prompts import MediaSpec


def image(seed: int, content: str = "noise", width: int = 40, height: int = 30) -> Any:
    return np.asarray(make_image(refer_synthetic("image", width=width, height=height, content=content, seed=seed)))


@pytest.mark.parametrize("content", ["noise", "gradient", "solid"])
def test_pictures_are_of_the_size_and_the_kind_that_was_asked_for(content):
    pixels = image(1, content)
    assert pixels.shape == (30, 40, 3)
    assert (pixels == image(1, content)).all()
    assert (pixels != image(2, content)).any()
    colours = len(np.unique(pixels.reshape(-1, 3), axis=0))
    assert {"noise": colours > 1_000, "gradient": 1 < colours <= 40, "solid": colours == 1}[content]


def test_sounds_are_of_the_length_that_was_asked_for():
    sound = make_sound(refer_synthetic("audio", seconds=0.5, seed=1), 16_000)
    assert (sound.shape, sound.dtype) == ((8_000,), np.float32)
    assert 0.05 < sound.std() < 0.2
    assert (sound != make_sound(refer_synthetic("audio", seconds=0.5, seed=2), 16_000)).any()


def test_they_are_loaded_like_any_other():
    media = [
        refer_synthetic("image", width=40, height=30, content="noise", seed=1),
        refer_synthetic("audio", seconds=2.0, seed=1),
    ]
    loaded, facts = load_all(media, MediaSpec(), Hearing())
    assert loaded[0].value.size == (40, 30)
    assert (facts.images, facts.image_pixels, facts.audios, facts.audio_s, facts.media_bytes) == (1, 1200, 1, 2.0, 0)
    assert len({one["digest"] for one in [*media, refer_synthetic("audio", seconds=2.0, seed=2)]}) == 3


def test_a_file_of_that_name_is_none():
    """A path that only looks like one, from a prompt file, is looked for as a file."""
    from assayline.media.fetch import Fetcher
    from assayline.media.references import MediaReader, Shelf

    with pytest.raises(MediaError, match="No such file"):
        MediaReader(Shelf(None), Fetcher(MediaSpec())).read("image", "synthetic:image?width=9&height=9&seed=1", None)
