"""What the media of a prompt set say of the engine's arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from assayline.requests.media_args import choose_media_args

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
def test_an_engine_is_ready_for_what_may_come(
    changes: dict[str, Any], expected: dict[str, Any], make_spec: Any, tmp_path: Path
) -> None:
    spec = make_spec(**changes)
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": 7}))
    assert choose_media_args(spec, tmp_path) == expected
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert choose_media_args(spec, tmp_path) == {}
    assert choose_media_args(spec, None) == {}
