"""Shards: as many requests as the spec says, and fewer where the prompts are long."""

from typing import Any

import pytest
from record_kit import rows_of

from assayline.evaluation import prepare
from assayline.evaluation.begin import begin_evaluation
from assayline.settings import Settings
from assayline.store.parts import count_rows, list_parts


@pytest.mark.parametrize(("largest", "sizes"), [(2**25, [4, 4, 3]), (4_000, [4, 1, 1, 1, 1, 1, 2]), (1, [1] * 11)])
def test_long_prompts_make_short_shards(
    make_spec: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, largest: int, sizes: list[int]
) -> None:
    """Short, long and then short again: a shard ends with the prompt that fills it."""
    monkeypatch.setattr(prepare, "LARGEST_SHARD", largest)
    texts = [f"{number} {'word ' * length}" for number, length in enumerate([1] * 4 + [800] * 5 + [1] * 2)]
    source = {"kind": "inline", "rows": [{"question": text} for text in texts]}
    prompts = {"source": source, "columns": {}, "template": "{{ question }}"}
    spec = make_spec(prompts=prompts, engine={"backend": "fake"}, chat={"template": "plain"}, shard_requests=4)
    evaluation = begin_evaluation(spec, settings, "never")
    counts = evaluation.prepare()
    assert [count_rows(part) for part in list_parts(evaluation.run_dir, "requests")] == sizes
    assert (counts.requests, counts.shards) == (len(texts), len(sizes))
    assert [row["rendered"] for row in rows_of(evaluation.run_dir, "requests")] == texts
