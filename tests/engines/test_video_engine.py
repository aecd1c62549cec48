"""Videos through real vLLM: a Qwen2.5-VL of random weights says nothing of sense, but other things of other frames."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_helpers import ARGS, by_id, open_engine
from PIL import Image
from random_video_model import build_video_model

from assayline.engines.client import OfflineEngine
from assayline.media.shelf import Shelf
from assayline.records import Request
from assayline.requests.chat import ChatRenderer, load_tokenizer
from assayline.requests.placeholders import find_placeholders
from assayline.spec.prompts import ChatSpec, MediaSpec

pytestmark = pytest.mark.vllm

SPEC = MediaSpec(video_frames=4)
GREEDY = {"temperature": 0, "max_tokens": 1, "logprobs": 20}
QUESTION = {"type": "text", "text": "What is shown?"}
SIDE = 112
VECTORS = (SIDE // 28) ** 2
"""Of a picture, and of two frames."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_video_model(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineEngine]:
    log = tmp_path_factory.mktemp("video") / "engine.log"
    args = {**ARGS, "limit_mm_per_prompt": {"image": 1, "video": 1}}
    with closing(open_engine(model, log, args=args, has_media=True, media=SPEC)) as opened:
        yield opened


def film(*colours: str) -> bytes:
    """A video of ten frames of each."""
    import io

    import av

    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for colour in colours:
            for _ in range(10):
                container.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (SIDE, SIDE), colour))))
        container.mux(stream.encode())
    return content.getvalue()


def test_videos_reach_the_model_and_a_broken_one_is_one_row(model: Path, engine: OfflineEngine, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model)
    renderer = ChatRenderer(ChatSpec(), tokenizer, None, find_placeholders(model, tokenizer, {}))
    alone = renderer.render([{"role": "user", "content": [{"type": "video"}, QUESTION]}])
    both = renderer.render([{"role": "user", "content": [{"type": "image"}, {"type": "video"}, QUESTION]}])
    films = {
        "turning": film("red", "blue"),
        "back": film("blue", "red"),
        "still": film("blue", "blue"),
        "broken": film("red")[:300],
    }
    for name, content in films.items():
        (tmp_path / f"{name}.mp4").write_bytes(content)
    Image.new("RGB", (SIDE, SIDE), "green").save(tmp_path / "green.png")
    shelf = Shelf(None)
    video = {name: shelf.refer("video", tmp_path / f"{name}.mp4") for name in films}
    requests = [
        Request(
            request_id=name,
            prompt_id="p",
            occurrence=0,
            repeat_index=0,
            prompt_token_ids=alone.token_ids,
            sampling=GREEDY,
            media=[one],
        )
        for name, one in video.items()
    ]
    requests.append(
        Request(
            request_id="again",
            prompt_id="p",
            occurrence=0,
            repeat_index=0,
            prompt_token_ids=alone.token_ids,
            sampling=GREEDY,
            media=[video["turning"]],
        )
    )
    picture = shelf.refer("image", tmp_path / "green.png")
    requests.append(
        Request(
            request_id="beside",
            prompt_id="p",
            occurrence=0,
            repeat_index=0,
            prompt_token_ids=both.token_ids,
            sampling=GREEDY,
            media=[picture, video["turning"]],
        )
    )
    answers = by_id(engine.generate(requests))

    broken = answers.pop("broken")
    assert (broken.error_kind, broken.text) == ("media_error", None)
    assert "The video cannot be read" in str(broken.error_message)
    assert {answer.error_kind for answer in answers.values()} == {None}
    turning, beside = answers["turning"], answers["beside"]
    assert (turning.videos, turning.video_frames, turning.media_tokens, turning.prompt_tokens) == (1, 4, 32, 42)
    assert turning.video_s == pytest.approx(2.0, abs=0.11)
    assert (beside.images, beside.videos, beside.media_tokens) == (1, 1, 3 * VECTORS)
    likely = {name: (answer.logprobs or [{}])[0] for name, answer in answers.items()}
    assert likely["turning"] == pytest.approx(likely["again"], abs=1e-3)
    for one, other in itertools.combinations(("turning", "back", "still", "beside"), 2):
        assert likely[one] != pytest.approx(likely[other], abs=0.01), "what is shown, and in which order, counts"
