"""The tiny models that see and hear: made the same each time, with data that show what a pipeline does wrong.

That they answer rightly, and by what they see and hear, is tested through real engines:
engines/test_media_engines.py and evaluation/test_media_run.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from examples import hearing, seeing
from examples.tiny_alm import ensure_tiny_alm
from examples.tiny_folder import STAMP
from examples.tiny_vlm import ensure_tiny_vlm

MODELS = {"sees": (ensure_tiny_vlm, "seeing"), "hears": (ensure_tiny_alm, "hearing")}
"""How it is made, and its data."""


@pytest.fixture(scope="module", params=["sees", pytest.param("hears", marks=pytest.mark.rare)])
def model(request: pytest.FixtureRequest) -> tuple[Callable[..., Path], str]:
    found: tuple[Callable[..., Path], str] = MODELS[request.param]
    return found


@pytest.mark.slow
def test_the_chat_template_takes_parts_and_refuses_others(model):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model[0]())
    kind, mark = {"seeing": ("image", "<image>"), "hearing": ("audio", "<|AUDIO|>")}[model[1]]

    def render(content: Any) -> str:
        return str(tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False))

    text = {"type": "text", "text": "Which?"}
    assert render([{"type": kind}, text, {"type": kind}]).count(mark) == 2
    assert render([text]) == render("Which?")
    with pytest.raises(Exception, match="takes parts of type"):
        render([{"type": "video"}, text])


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("ensure", [ensure_tiny_vlm, ensure_tiny_alm])
def test_the_same_recipe_gives_the_same_bytes(ensure, tmp_path):
    stamps = [(ensure(tmp_path / name, steps=1) / STAMP).read_bytes() for name in ("one", "two")]
    assert stamps[0] == stamps[1]


def read_flac(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])


def test_audio_file_is_written_without_loss(tmp_path):
    _, sounds = hearing.build_rows()
    hearing.write_flac(tmp_path / "a.flac", sounds[0])
    np.testing.assert_array_equal(read_flac(tmp_path / "a.flac"), sounds[0])


@pytest.mark.parametrize("task", [seeing, hearing])
def test_the_files_are_the_generated_ones(task):
    rows, media = task.build_rows()
    assert [json.loads(line) for line in task.FOLDER.with_suffix(".jsonl").read_text().splitlines()] == rows
    paths = sorted(task.FOLDER.iterdir())
    assert len(paths) == len(media)
    for path, made in zip(paths, media, strict=True):
        stored = np.asarray(Image.open(path)) if task is seeing else read_flac(path)
        np.testing.assert_array_equal(stored, made)


@pytest.mark.parametrize("task", [seeing, hearing])
def test_every_row_tells_a_faulty_pipeline_from_a_right_one(task):
    rows, _ = task.build_rows()
    column = "image" if task is seeing else "audio"
    assert 100 <= len(rows) <= 200
    assert {row["answer"] for row in rows if row[column] is None} == {"none"}
    assert "none" not in {row["answer"] for row in rows if row[column] is not None}
    assert sum(isinstance(row[column], list) for row in rows) >= 30
    assert len({json.dumps([row[column], row["question"]]) for row in rows if row[column]}) > 0.9 * len(rows) - 16
