"""Media on the page: small copies that hold nothing of the file but what is seen and heard."""

import base64
import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assayline.media.references import MediaStore
from assayline.media.sounds import encode_wav
from assayline.report.document import Document, Exhibit, Sample, Section
from assayline.report.html import render_html
from assayline.report.markdown import render_markdown
from assayline.report.run.accuracy import MOST_EXHIBITS, SOUND_S, show_media

SECRET = b"GPS: 52.5 N, 13.4 E"


def jpeg(size: tuple[int, int] = (900, 300)) -> bytes:
    """A photograph with its place in it, and a script behind its end."""
    exif = Image.Exif()
    exif[0x010E] = SECRET.decode()
    content = io.BytesIO()
    Image.new("RGB", size, (200, 40, 40)).save(content, "JPEG", exif=exif)
    return content.getvalue() + b"<script>alert(1)</script>"


def wav(seconds: float) -> bytes:
    return encode_wav(np.zeros(round(seconds * 16_000), np.float32), 16_000)


def show(run_dir: Path, *media: Any) -> list[Exhibit]:
    return show_media(json.dumps(list(media)), run_dir)


def decode(exhibit: Exhibit) -> bytes:
    return base64.b64decode(exhibit.uri.partition(",")[2])


def test_image_exhibit_is_a_thumbnail(tmp_path):
    [exhibit] = show(tmp_path, MediaStore(tmp_path).keep("image", jpeg()))
    assert (exhibit.kind, exhibit.words) == ("image", "image 1, 900 × 300 pixels")
    copy = decode(exhibit)
    assert Image.open(io.BytesIO(copy)).size == (240, 80)
    assert len(copy) < 20_000
    assert SECRET not in copy
    assert b"script" not in copy


def test_audio_exhibit_is_its_beginning(tmp_path):
    media_store = MediaStore(tmp_path)
    short, long = show(tmp_path, media_store.keep("audio", wav(1.0)), media_store.keep("audio", wav(60.0)))
    assert (short.kind, short.words, long.words) == ("audio", "audio 1, 1.0 s", "audio 2, first 10 s")
    with wave.open(io.BytesIO(decode(long))) as file:
        assert file.getnframes() / file.getframerate() == SOUND_S
    assert len(long.uri) < 250_000


def test_exhibit_reports_media_that_cannot_be_shown(tmp_path):
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    media_store = MediaStore(tmp_path)
    gone = {"kind": "image", "path": "/no/such.png", "digest": "x"}
    shown = show(
        tmp_path, media_store.keep("image", svg), gone, *[media_store.keep("image", jpeg((8, 8)))] * MOST_EXHIBITS
    )
    assert [one.kind for one in shown] == ["note", "note", *["image"] * (MOST_EXHIBITS - 2), "note"]
    assert "image 1 cannot be shown" in shown[0].words
    assert "/no/such.png cannot be read: No such file" in shown[1].words
    assert shown[-1].words == "and 2 more"
    assert show_media(None, tmp_path) == show_media("[]", tmp_path) == []


@pytest.mark.parametrize("words", ["plain", "<script>alert('x')</script>", "| pipe `tick`"])
def test_both_forms_carry_them_and_trust_nothing(words, tmp_path):
    exhibits = [
        Exhibit("image", words, "data:image/jpeg;base64,AAAA"),
        Exhibit("audio", words, "data:audio/wav;base64,AAAA"),
        Exhibit("note", words),
    ]
    section = Section("prompts", "Prompts", [Sample("one", [("score", "1")], [], exhibits)])
    document = Document("t", "s", "completed", [], [], [section])
    page = render_html(document, tmp_path)
    assert page.count('src="data:') == 2
    assert "<script>alert" not in page
    assert "img-src data:; media-src data:;" in page
    text = render_markdown(document)
    assert text.count("\n- ") == 4
    assert "<script>" not in text
    assert "data:" not in text
