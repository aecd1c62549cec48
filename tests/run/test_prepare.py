"""Preparing: shards of the specified size, smaller if prompts are long, and bad rows."""

import json

import pytest
from run_kit import rows_of

from assayline.errors import PromptError
from assayline.run import prepare
from assayline.run.begin import begin_evaluation
from assayline.store.parts import count_rows, list_parts


@pytest.mark.parametrize(("largest", "sizes"), [(2**25, [4, 4, 3]), (4_000, [4, 1, 1, 1, 1, 1, 2]), (1, [1] * 11)])
def test_long_prompts_make_short_shards(make_spec, settings, monkeypatch, largest, sizes):
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


def test_bad_rows_are_error_rows_or_the_end(make_spec, settings, tmp_path):
    lines = ['{"question": "a"}', "{broken", '{"question": null}', json.dumps({"question": "word " * 5000})]
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines, '{"question": "b"}']))
    prompts = {
        "source": {"kind": "file", "path": str(tmp_path / "rows.jsonl")},
        "columns": {},
        "template": "{{ question }}",
    }
    spec = make_spec(prompts=prompts, engine={"backend": "fake"}, chat={"template": "plain"})
    evaluation = begin_evaluation(spec, settings, "never")
    counts = evaluation.prepare()
    assert (counts.prompt_rows, counts.requests, counts.failed_requests) == (5, 5, 3)
    errors = rows_of(evaluation.run_dir, "completions")
    assert [row["error_kind"] for row in errors] == ["unreadable_row", "template_error", "prompt_too_long"]
    for row, kind in ((1, "unreadable_row"), (2, "template_error"), (3, "prompt_too_long")):
        (tmp_path / "rows.jsonl").write_text("\n".join([lines[0], *lines[row:]]))
        plain = {"engine": {"backend": "fake"}, "chat": {"template": "plain"}}
        stopping = make_spec(prompts=prompts, max_error_share=0, **plain)
        with pytest.raises(PromptError, match=rf"Row 1 cannot become a request \({kind}\)"):
            begin_evaluation(stopping, settings, "never").prepare()
