"""The loop of docs/guides/python-api.md, word for word, with real vLLM."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest
from run_kit import ENGINE_ARGS, ROOT

ROWS = 20
ARGS = {**ENGINE_ARGS, "max_num_seqs": 8}


@pytest.mark.vllm
def test_the_rollout_loop_of_the_docs_runs(tiny_model, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "guides" / "python-api.md").read_text(encoding="utf-8")
    loop, *_ = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert len(loop.splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    rows = (ROOT / "examples" / "arithmetic.jsonl").read_text().splitlines(keepends=True)[:ROWS]
    Path("examples/arithmetic.jsonl").write_text("".join(rows))
    small = repr(ARGS)
    code = loop.replace('".cache/tiny-model"', repr(str(tiny_model))).replace('{"max_model_len": 256}', small)
    assert code.count(small) == 1
    exec(compile(code, "docs/guides/python-api.md", "exec"), {})
    rollouts = [json.loads(line) for line in Path("rollouts.jsonl").read_text().splitlines()]
    asked = Counter(tuple(rollout["prompt"]) for rollout in rollouts)
    assert len(rollouts) == 4 * ROWS and set(asked.values()) <= {4, 8}, "each prompt has its four samples, once"
    for rollout in rollouts:
        assert len(rollout["tokens"]) == len(rollout["logprobs"]) > 0
        assert all(math.isfinite(value) and value <= 0 for value in rollout["logprobs"])
        assert rollout["model"].startswith("sha256:")
    assert sum(rollout["reward"] for rollout in rollouts) > ROWS
