"""Images and videos: every common format becomes RGB, or an error."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from media_kit import BLUE, RED, encode, encode_video, picture
from PIL import Image

from assayline.errors import MediaError
from assayline.media import pictures
from assayline.media.pictures import decode_image, decode_video
from assayline.spec.prompts import MediaSpec

PLAIN = MediaSpec()


def near(image: Image.Image, colour: tuple[int, int, int], slack: int = 12) -> bool:
    return bool(np.abs(np.asarray(image).astype(int) - colour).max() <= slack)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_formats_are_told_by_their_content(form):
    image = decode_image(encode(picture(), form), PLAIN)
    assert (image.mode, image.size) == ("RGB", (20, 10))
    assert near(image, RED)


@pytest.mark.parametrize(
    ("image", "form", "expected"),
    [
        (picture(mode="L", colour=200), "PNG", (200, 200, 200)),
        (picture(mode="CMYK", colour=(0, 255, 255, 0)), "TIFF", (255, 0, 0)),
        (picture(mode="CMYK", colour=(0, 255, 255, 0)), "JPEG", (255, 0, 0)),
        (picture().quantize(4), "PNG", RED),
        (picture(mode="RGBA", colour=(*RED, 255)), "PNG", RED),
        (picture(mode="RGBA", colour=(*RED, 0)), "PNG", (255, 255, 255)),
        (picture(mode="LA", colour=(0, 0)), "PNG", (255, 255, 255)),
        (picture(mode="1", colour=1), "PNG", (255, 255, 255)),
        (Image.fromarray(np.full((10, 20), 0x8000, np.uint16)), "PNG", (128, 128, 128)),
    ],
    ids=["grey", "cmyk tiff", "cmyk jpeg", "palette", "opaque", "transparent", "grey and alpha", "one bit", "16 bits"],
)
def test_every_mode_is_seen_as_people_see_it(image, form, expected):
    assert near(decode_image(encode(image, form), PLAIN), expected, slack=40 if form == "JPEG" else 12)


def test_a_palette_with_a_transparent_colour_stands_on_white():
    image = picture().quantize(4)
    content = encode(image, "PNG", transparency=image.getpixel((0, 0)))
    assert near(decode_image(content, PLAIN), (255, 255, 255))


def test_a_rotation_note_is_followed():
    image = picture(20, 10)
    image.paste(BLUE, (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    upright = decode_image(encode(image, "PNG", exif=exif), PLAIN)
    assert upright.size == (10, 20)
    assert near(upright.crop((0, 0, 10, 10)), BLUE)
    assert near(upright.crop((0, 10, 10, 20)), RED)


@pytest.mark.parametrize(
    ("most", "size"), [(None, (400, 100)), (40_000, (400, 100)), (10_000, (200, 50)), (100, (20, 5)), (1, (2, 1))]
)
def test_large_images_are_downscaled_in_proportion(most, size):
    assert decode_image(encode(picture(400, 100)), MediaSpec(max_pixels=most)).size == size
    assert decode_image(encode(picture(1, 1)), MediaSpec(max_pixels=most)).size == (1, 1)


def png_of_size(width: int, height: int) -> bytes:
    """A few bytes that claim to be an image of that size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


ANIMATED = encode(picture(), "GIF", save_all=True, append_images=[picture(colour=BLUE)], duration=100)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read: 0 bytes"),
        (b"hello, this is no picture", "begin b'hello, this ' are none of"),
        (SVG, "are none of BMP"),
        (encode(picture(200, 200), "JPEG")[:-400], "truncated|broken"),
        (encode(picture(200, 200))[:60], "truncated|broken|cannot be read"),
        (png_of_size(50_000, 50_000), "2500000000 pixels.* exceeds limit of 178956970"),
        (png_of_size(0, 5), "cannot be read|expected at least 1 x 1"),
        (png_of_size(5, 5), "cannot be read"),
        (ANIMATED, "animated: 2 frames of a GIF"),
        (encode(picture(mode="F", colour=0.5), "TIFF"), "floating-point"),
    ],
    ids=["empty", "text", "svg", "cut jpeg", "cut png", "bomb", "no width", "no pixels", "animated", "floats"],
)
def test_decode_image_rejects_invalid_content(content, words):
    with pytest.raises(MediaError, match=words):
        decode_image(content, PLAIN)


def test_pages_and_previews_do_not_count_as_video():
    for form in ("TIFF", "MPO"):
        content = encode(picture(), form, save_all=True, append_images=[picture(colour=BLUE)])
        assert near(decode_image(content, PLAIN), RED)


def test_a_decoder_that_raises_anything_is_one_bad_row(monkeypatch):
    def fail(image: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(pictures, "_as_rgb", fail)
    with pytest.raises(MediaError, match="MemoryError: no room"):
        decode_image(encode(picture()), PLAIN)


FILM = encode_video([picture(64, 48, colour=RED if number < 10 else BLUE) for number in range(20)], rate=10)


def test_frames_are_evenly_spaced_from_first_to_last():
    video = decode_video(FILM, MediaSpec(video_frames=4))
    assert video.frames.shape == (4, 48, 64, 3)
    assert video.metadata["frames_indices"] == [0, 6, 13, 19]
    assert video.metadata["total_num_frames"] == 20
    assert video.seconds == pytest.approx(2.0, abs=0.11)
    assert video.metadata["fps"] == pytest.approx(10, abs=0.6)
    means = video.frames.reshape(4, -1, 3).mean(axis=1)
    assert [bool(red > blue) for red, _, blue in means] == [True, True, False, False]


def test_a_short_one_gives_all_it_has():
    assert len(decode_video(encode_video([picture(32, 32)] * 3), MediaSpec()).frames) == 3


def test_frames_are_made_smaller():
    assert decode_video(FILM, MediaSpec(max_pixels=768)).frames.shape == (8, 24, 32, 3)


@pytest.mark.parametrize("content", [b"", b"no film", encode(picture()), FILM[:200]])
def test_decode_rejects_an_invalid_video(content):
    if content[:4] == b"\x89PNG":  # an image is a video of one frame to FFmpeg, but not to us
        assert len(decode_video(content, MediaSpec()).frames) == 1
        return
    with pytest.raises(MediaError, match=r"The video (cannot be read|has no frames)"):
        decode_video(content, MediaSpec())
