"""Placeholders of media in prompts, and arguments of engines, by a model's config.json."""

import json
from typing import Any

import pytest

from assayline.prompts import RowError
from assayline.requests.chat import ChatRenderer
from assayline.requests.model_config import choose_media_args, find_placeholders, names_media, read_config
from assayline.spec.prompts import ChatSpec

IMAGE, AUDIO = {"type": "image"}, {"type": "audio"}
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<img>{% elif p.type == 'audio' %}<aud>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
TEXT = "{% for m in messages %}{{ m.content + '|' }}{% endfor %}"
DROPS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
BOTH = {"image": "<img>", "audio": "<aud>"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def render(tokenizer: Any, content: Any, template: str, placeholders: Any = BOTH) -> str:
    renderer = ChatRenderer(ChatSpec(template=template), tokenizer, None, placeholders)
    return renderer.render([{"role": "user", "content": content}]).text


@pytest.mark.parametrize(
    ("template", "expected"),
    [(PARTS, "<img>see<aud>hear"), (TEXT, "<img>\nsee\n<aud>\nhear|"), ("plain", "<img> see <aud> hear")],
    ids=["parts", "text", "plain"],
)
def test_each_kind_of_template_shows_media_where_they_stand(tokenizer, template, expected):
    assert render(tokenizer, [IMAGE, text("see"), AUDIO, text("hear")], template) == expected


def test_placeholders_may_be_numbered_or_unwritten(tokenizer):
    numbered = {"image": "<|image_{i}|>"}
    assert render(tokenizer, [IMAGE, text("x"), IMAGE], TEXT, numbered) == "<|image_1|>\nx\n<|image_2|>|"
    assert render(tokenizer, [IMAGE, text("x")], TEXT, {"image": ""}) == "x|"


@pytest.mark.parametrize(
    ("content", "template", "placeholders", "words"),
    [
        ([IMAGE, text("x")], DROPS, BOTH, r"has 0 placeholders '<img>' of kind image, and the row has 1"),
        ([IMAGE, text("an <img> here")], PARTS, BOTH, r"has 2 placeholders '<img>'.*the row has 1"),
        ("an <img> here", PARTS, BOTH, r"has 1 placeholders '<img>'.*the row has 0"),
        ("a <|image_7|> here", TEXT, {"image": "<|image_{i}|>"}, r"has 1 placeholders"),
        ([AUDIO, text("x")], PARTS, {"image": "<img>"}, r"has audio in it, and the model takes image"),
        ([{"type": "video"}, text("x")], PARTS, {}, r"has a video in it, and the model takes text alone"),
        ([IMAGE, text("x")], "plain", {}, r"has an image in it, and the model takes text alone"),
    ],
)
def test_media_that_the_model_does_not_take_are_rejected(tokenizer, content, template, placeholders, words):
    with pytest.raises(RowError, match=words) as caught:
        render(tokenizer, content, template, placeholders)
    assert caught.value.kind == "media_error"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"image_token_id": 5}, {"image": "five"}),
        ({"image_token_index": 5, "audio_token_index": 6}, {"image": "five", "audio": "six"}),
        ({"model_type": "gemma3", "image_token_index": 5}, {"image": "<start_of_image>"}),
        ({"model_type": "llama"}, {}),
        ([], {}),
        (None, {}),
    ],
)
def test_a_models_own_are_in_its_config(config, expected, tmp_path):
    class Tokenizer:
        def convert_ids_to_tokens(self, id: int) -> str:
            return {5: "five", 6: "six"}[id]

    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_placeholders(tmp_path, Tokenizer(), {}) == expected
    assert find_placeholders(tmp_path, Tokenizer(), {"video": "<v>"}) == {**expected, "video": "<v>"}
    assert names_media(read_config(tmp_path)) is bool(expected)


INLINE = {"source": {"kind": "inline", "rows": [{"q": "x", "i": "a.png"}]}}
SEES = {"limit_mm_per_prompt": {"audio": 0, "video": 0}, "mm_processor_cache_gb": 0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompts": {**INLINE, "columns": {"images": "i"}, "template": "{{ q }}"}}, SEES),
        ({"prompts": {**INLINE, "columns": {"images": "i", "prompt": "q"}, "template": None}}, SEES),
        ({"prompts": {**INLINE, "columns": {}, "template": "{{ q }}"}}, {"language_model_only": True}),
        ({"prompts": {**INLINE, "columns": {"messages": "q"}, "template": None}}, {"mm_processor_cache_gb": 0}),
        (
            {"prompts": {**INLINE, "columns": {"images": "i"}, "template": "{{ q }}", "repeats": 3}},
            {"limit_mm_per_prompt": {"audio": 0, "video": 0}},
        ),
        (
            {
                "prompts": {**INLINE, "columns": {"images": "i"}, "template": "{{ q }}"},
                "engine": {"args": {"limit_mm_per_prompt": {"image": 2}, "mm_processor_cache_gb": 4}},
            },
            {},
        ),
        (
            {
                "prompts": {**INLINE, "columns": {}, "template": "{{ q }}"},
                "engine": {"args": {"limit_mm_per_prompt": {"image": 2}}},
            },
            {},
        ),
    ],
    ids=["a column", "no template", "text alone", "messages", "repeats", "given", "given for text"],
)
def test_an_engine_is_ready_for_what_may_come(changes, expected, make_spec, tmp_path):
    spec = make_spec(**changes)
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": 7}))
    assert choose_media_args(spec, tmp_path) == expected
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert choose_media_args(spec, tmp_path) == {}
    assert choose_media_args(spec, None) == {}
