"""What a spec says of media, and what it may not."""

from typing import Any

import pytest
from pydantic import ValidationError

from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import spec_hash

ROWS = {"kind": "inline", "rows": [{"prompt": "x", "i": "a.png"}]}


def spec(**prompts: Any) -> EvalSpec:
    return EvalSpec.model_validate({"model": "m", "prompts": {"source": ROWS, **prompts}})


def test_a_column_may_be_named_alone():
    columns = spec(columns={"images": "i", "audios": ["a", "b"]}).prompts.columns
    assert columns.media == {"image": ["i"], "audio": ["a", "b"]}


def test_a_spec_without_media_is_the_spec_that_it_was():
    """Runs of before are resumed, and held against, by this digest."""
    assert "media" not in str(spec().model_dump(mode="json"))
    assert spec_hash(spec()) == spec_hash(spec(columns={"images": []}, media={}))
    assert spec_hash(spec()) != spec_hash(spec(columns={"images": "i"}))
    assert spec_hash(spec()) != spec_hash(spec(media={"max_pixels": 100}))


@pytest.mark.parametrize(
    ("media", "words"),
    [
        ({"max_pixels": 0}, "greater than or equal to 1"),
        ({"resampling": "magic"}, "'lanczos'"),
        ({"marks": {"image": ""}}, "not empty"),
        ({"marks": {"image": "<m>", "audio": "<m>"}}, "not part of each other"),
        ({"marks": {"smell": "<s>"}}, "'image'"),
    ],
)
def test_what_cannot_be_is_refused(media, words):
    with pytest.raises(ValidationError, match=words):
        spec(media=media)
