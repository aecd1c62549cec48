"""Videos through real vLLM: a Qwen2.5-VL of random weights says nothing of sense, but other things of other frames."""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_kit import ARGS, by_id, open_engine
from media_kit import encode_video
from PIL import Image
from run_kit import plain_request

from assayline.engines.client import HostedEngine
from assayline.media.references import MediaStore
from assayline.requests.chat import ChatRenderer
from assayline.requests.model_config import find_placeholders
from assayline.requests.tokenizer import load_tokenizer
from assayline.spec.prompts import ChatSpec, MediaSpec

pytestmark = pytest.mark.vllm

SPEC = MediaSpec(video_frames=4)
GREEDY = {"temperature": 0, "max_tokens": 1, "logprobs": 20}
QUESTION = {"type": "text", "text": "What is shown?"}
SIDE = 112
VECTORS = (SIDE // 28) ** 2
"""Of a picture, and of two frames."""
SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
START, END, IMAGE, VIDEO = SPECIALS
PATCH, MERGED = 14, 2
SMALL = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
"""Pixels of a picture or frame."""
PART = f"{{{{- '{START}{IMAGE}{END}' if part['type'] == 'image' else '{START}{VIDEO}{END}' }}}}"
CHAT_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}{{- '<|user|>' }}{%- if message['content'] is string %}"
    "{{- message['content'] }}{%- else %}{%- for part in message['content'] %}{%- if part['type'] == 'text' %}"
    "{{- part['text'] }}{%- else %}" + PART + "{%- endif %}{%- endfor %}{%- endif %}{{- '<|end|>' }}{%- endfor %}"
    "{{- '<|assistant|>' }}"
)


def build_video_model(folder: Path) -> Path:
    """Write model, tokenizer and processor. Needs torchvision, which is installed on CPUs."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from examples.tiny_tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["What is shown?"], CHAT_TEMPLATE, SPECIALS)
    ids = dict(zip(SPECIALS, tokenizer.convert_tokens_to_ids(list(SPECIALS)), strict=True))
    text = {
        "vocab_size": 384, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
        "patch_size": PATCH, "spatial_merge_size": MERGED, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=ids[START],
        vision_end_token_id=ids[END],
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        tie_word_embeddings=False,
        dtype="float32",
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(4)  # so that answers differ between images, unlike with tiny weights
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shape = {"patch_size": PATCH, "merge_size": MERGED, "temporal_patch_size": 2, "size": SMALL}
    shape |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # vLLM scales in the model, by what stands here
    kinds = {"image_processor_type": "Qwen2VLImageProcessor", "video_processor_type": "Qwen2VLVideoProcessor"}
    content = {**kinds, "processor_class": "Qwen2_5_VLProcessor", **shape}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_video_model(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedEngine]:
    log = tmp_path_factory.mktemp("video") / "engine.log"
    args = {**ARGS, "limit_mm_per_prompt": {"image": 1, "video": 1}}
    with closing(open_engine(model, log, args=args, has_media=True, media=SPEC)) as opened:
        yield opened


def film(*colours: str) -> bytes:
    """A video of ten frames of each."""
    return encode_video([Image.new("RGB", (SIDE, SIDE), colour) for colour in colours for _ in range(10)])


def test_videos_reach_the_model_and_a_broken_one_is_one_row(model, engine, tmp_path):
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
    media_store = MediaStore(None)
    video = {name: media_store.refer("video", tmp_path / f"{name}.mp4") for name in films}
    requests = [
        plain_request(name, prompt_token_ids=alone.token_ids, sampling=GREEDY, media=[one])
        for name, one in video.items()
    ]
    requests.append(plain_request("again", prompt_token_ids=alone.token_ids, sampling=GREEDY, media=[video["turning"]]))
    picture = media_store.refer("image", tmp_path / "green.png")
    requests.append(
        plain_request("beside", prompt_token_ids=both.token_ids, sampling=GREEDY, media=[picture, video["turning"]])
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
