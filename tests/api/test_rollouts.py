"""The loop of docs/python.md, word for word, with real vLLM that is killed in the middle."""

import json
import logging
import math
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assayline import Answer, Engine

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20
KILLED_AFTER = 30
ARGS = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**27,
}
"""vLLM on a CPU, small and quick to start."""


@pytest.mark.vllm
def test_the_rollout_loop_survives_its_engines_death(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (loop, _) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert len(loop.splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    rows = (ROOT / "examples" / "arithmetic.jsonl").read_text().splitlines(keepends=True)[:ROWS]
    Path("examples/arithmetic.jsonl").write_text("".join(rows))
    generate = Engine.generate

    def generate_and_kill(engine: Engine, *arguments: Any, **options: Any) -> Iterator[Answer]:
        for number, answer in enumerate(generate(engine, *arguments, **options)):
            if number == KILLED_AFTER:
                os.kill(engine._engine._engine.host_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            yield answer

    monkeypatch.setattr(Engine, "generate", generate_and_kill)
    small = repr(ARGS)
    code = loop.replace('".cache/tiny-model"', repr(str(tiny_model))).replace('{"max_model_len": 256}', small)
    assert code.count(small) == 1
    with caplog.at_level(logging.WARNING, "assayline"):
        exec(compile(code, "docs/python.md", "exec"), {})
    assert "engine 0 failed" in caplog.text
    rollouts = [json.loads(line) for line in Path("rollouts.jsonl").read_text().splitlines()]
    asked = Counter(tuple(rollout["prompt"]) for rollout in rollouts)
    assert len(rollouts) == 4 * ROWS and set(asked.values()) <= {4, 8}, "each prompt has its four samples, once"
    for rollout in rollouts:
        assert len(rollout["tokens"]) == len(rollout["logprobs"]) > 0
        assert all(math.isfinite(value) and value <= 0 for value in rollout["logprobs"])
        assert rollout["model"].startswith("sha256:")
    assert sum(rollout["reward"] for rollout in rollouts) > ROWS
