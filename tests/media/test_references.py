"""Values of media columns: every form of an image is the same reference, and an invalid one is an error."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_kit import encode, picture, tone

from assayline.digests import digest_bytes
from assayline.errors import MediaError
from assayline.media.fetch import Fetcher
from assayline.media.load import Hearing, load_all, make_image, make_sound, refer_synthetic
from assayline.media.references import MediaReader, MediaStore, find_media
from assayline.spec.prompts import MediaSpec

PNG = encode(picture())
DIGEST = digest_bytes(PNG)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with one image."""
    (tmp_path / "data" / "my pictures").mkdir(parents=True)
    (tmp_path / "data" / "my pictures" / "a 1.png").write_bytes(PNG)
    return tmp_path / "data"


@pytest.fixture
def reader(tmp_path: Path) -> MediaReader:
    return MediaReader(MediaStore(tmp_path / "run"), Fetcher(MediaSpec()))


def test_every_form_of_an_image_is_the_same_reference(folder, reader, tmp_path):
    file = folder / "my pictures" / "a 1.png"
    text = base64.b64encode(PNG).decode()
    values: list[Any] = [
        "my pictures/a 1.png", str(file), file, file.as_uri(), f"data:image/png;base64,{text}",
        f"DATA:;base64,{text[:40]}\n{text[40:]}", text, PNG, bytearray(PNG), {"bytes": PNG, "path": None},
        {"bytes": PNG, "path": "elsewhere.png"}, {"bytes": None, "path": "my pictures/a 1.png"}, {"path": str(file)},
        {"url": f"data:image/png;base64,{text}"},
    ]  # fmt: skip
    for value in values:
        (media,) = reader.read("image", value, folder)
        assert media["digest"] == DIGEST, value
        (loaded,), facts = load_all([find_media(media, tmp_path / "run")], MediaSpec(), Hearing())
        assert np.asarray(loaded.value).tolist() == np.asarray(picture()).tolist()
        assert facts == {"images": 1, "image_pixels": 200, "media_bytes": len(PNG)}


def test_a_list_keeps_its_order_and_leaves_out_what_is_null(folder, reader):
    other = encode(picture(3, 3))
    media = reader.read("image", ["my pictures/a 1.png", None, other], folder)
    assert [one["digest"] for one in media] == [DIGEST, digest_bytes(other)]
    for nothing in (None, [], [None]):
        assert reader.read("image", nothing, folder) == []


def test_inline_media_are_stored_once_and_files_stay_in_place(folder, reader, tmp_path):
    for value in (PNG, PNG, {"bytes": PNG}, "my pictures/a 1.png"):
        reader.read("image", value, folder)
    kept = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in kept] == [PNG]
    (media,) = reader.read("image", PNG, folder)
    assert not Path(media["path"]).is_absolute(), "so that the run's folder may be moved"
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert load_all([find_media(media, moved)], MediaSpec(), Hearing())


def test_a_dry_run_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (media,) = MediaReader(MediaStore(None), Fetcher(MediaSpec())).read("image", PNG, None)
    assert media["digest"] == DIGEST
    assert list(tmp_path.iterdir()) == []


def test_decoded_columns_of_datasets_are_read_too(reader, tmp_path):
    (image,) = reader.read("image", picture(), None)
    (sound,) = reader.read("audio", {"array": tone()[:, 0], "sampling_rate": 16_000, "path": None}, None)
    loaded, facts = load_all([find_media(one, tmp_path / "run") for one in (image, sound)], MediaSpec(), Hearing())
    assert np.asarray(loaded[0].value).tolist() == np.asarray(picture()).tolist()
    assert np.abs(loaded[1].value - tone()[:, 0]).max() < 1e-6
    assert (facts["audios"], facts["audio_s"]) == (1, 0.5)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("missing.png", "missing.png' cannot be read: No such file"), ("/no/such/folder/a.png", "No such file"),
        (".", "is not a regular file"), ("a\0b.png", "null"), ("file://other-machine/a.png", "on another machine"),
        ("file:///no/such.png", "No such file"), ("data:image/png;base64,@@@", "not base64"),
        ("data:image/png;base64", "without a comma"), ("data:image/png;base64,", "empty"),
        ("ftp://host/a.png", "unknown scheme"), ("http://example.com/a.png", "allowed_domains does not allow"),
        ("x" * 5000 + "!", "neither a path nor base64"), ("~nobody-of-that-name/a.png", "user that does not exist"),
        (b"", "empty"), ("", "is an empty text. hint: write null"), ([" "], "is an empty text. hint: write null"),
        (7, "expected a path"), (True, "expected a path"), ({"path": None}, "expected a path"),
        ({}, "expected a path"), ([0.1, 0.2], "list of numbers"),
    ],
)  # fmt: skip
def test_reference_rejects_an_invalid_image(value, words, folder, reader):
    with pytest.raises(MediaError, match=words):
        reader.read("image", value, folder)


def test_a_file_that_changed_is_not_taken_for_what_it_was(folder, reader):
    file = folder / "my pictures" / "a 1.png"
    media = reader.read("image", str(file), folder)
    file.write_bytes(encode(picture(30, 30)))
    with pytest.raises(MediaError, match="changed after the prompts were read"):
        load_all(media, MediaSpec(), Hearing())
    file.unlink()
    with pytest.raises(MediaError, match="cannot be read: No such file"):
        load_all(media, MediaSpec(), Hearing())


def test_a_bad_one_among_several_is_named(folder, reader):
    (folder / "bad.png").write_bytes(b"no picture")
    media = reader.read("image", ["my pictures/a 1.png", "bad.png"], folder)
    with pytest.raises(MediaError, match=r"10 bytes.*bad\.png, 2 of 2"):
        load_all(media, MediaSpec(), Hearing())


def image(seed: int, width: int = 40, height: int = 30) -> Any:
    return np.asarray(make_image(refer_synthetic("image", width=width, height=height, seed=seed)))


def test_images_are_noise_of_the_requested_size():
    pixels = image(1)
    assert pixels.shape == (30, 40, 3)
    assert (pixels == image(1)).all()
    assert (pixels != image(2)).any()
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 1_000


def test_audio_has_the_requested_length():
    sound = make_sound(refer_synthetic("audio", seconds=0.5, seed=1), 16_000)
    assert (sound.shape, sound.dtype) == ((8_000,), np.float32)
    assert 0.05 < sound.std() < 0.2
    assert (sound != make_sound(refer_synthetic("audio", seconds=0.5, seed=2), 16_000)).any()


def test_synthetic_media_are_loaded_like_any_other():
    media = [
        refer_synthetic("image", width=40, height=30, content="noise", seed=1),
        refer_synthetic("audio", seconds=2.0, seed=1),
    ]
    loaded, facts = load_all(media, MediaSpec(), Hearing())
    assert loaded[0].value.size == (40, 30)
    assert facts == {"images": 1, "image_pixels": 1200, "audios": 1, "audio_s": 2.0, "media_bytes": 0}
    assert len({one["digest"] for one in [*media, refer_synthetic("audio", seconds=2.0, seed=2)]}) == 3


def test_a_file_of_that_name_is_none():
    """A path that only looks like one, from a prompt file, is looked for as a file."""

    with pytest.raises(MediaError, match="No such file"):
        MediaReader(MediaStore(None), Fetcher(MediaSpec())).read(
            "image", "synthetic:image?width=9&height=9&seed=1", None
        )
