"""Whole runs of a trace: its times at a server, its shared blocks in a real engine's cache, its error rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_kit import complete, query
from server_kit import FakeServer

BLOCK = 128
"""Tokens in a block, of the trace and of the engine's cache."""


def trace_of(folder: Path, rows: list[tuple[int, int, list[int]]]) -> dict[str, Any]:
    """Prompts from rows of (timestamp in ms, tokens, hash_ids)."""
    path = folder / "trace.jsonl"
    lines = [{"timestamp": at, "input_length": n, "output_length": 3, "hash_ids": ids} for at, n, ids in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"source": {"kind": "trace", "path": str(path), "block_tokens": BLOCK}}


@pytest.mark.slow
def test_requests_reach_a_server_when_the_trace_says(tmp_path, settings, make_spec):
    """The second row cannot be asked, and takes its time with it: the third keeps its own."""
    prompts = trace_of(tmp_path, [(5000, 20, [1]), (5200, -1, []), (5600, 30, [1]), (5600, 200, [1, 2]), (6400, 9, [])])
    with FakeServer().running() as server:
        spec = make_spec(
            prompts={**prompts, "columns": {}, "template": None},
            engine={"backend": "server", "server": {"url": server.url}, "args": {}},
            load={"arrival": {"kind": "trace", "speed": 4}},
        )
        assert complete(spec, settings).answered_requests == 5, "error rows are answers too"
        _, *asked = server.received
    assert [len(one.body["prompt"]) for one in asked] == [20, 30, 200, 9]
    assert {(one.body["max_tokens"], one.body["min_tokens"], one.body["ignore_eos"]) for one in asked} == {(3, 3, True)}
    rows = query(settings, "select due_at_s, sent_at_s from completions where error_kind is null order by due_at_s")
    first_s = rows[0][0]
    assert [due_s - first_s for due_s, _ in rows] == pytest.approx([0, 0.15, 0.15, 0.35])
    assert all(sent_s >= due_s for due_s, sent_s in rows)
    stored = query(settings, "select due_offset_s, len(prompt_token_ids) from requests order by 1, 2")
    assert stored == [(0, 20), (0.6, 30), (0.6, 200), (1.4, 9), (None, None)]
    [(kind, message)] = query(
        settings, "select error_kind, error_message from completions where error_kind is not null"
    )
    assert kind == "row_error" and "input_length holds -1" in message


@pytest.mark.rare
@pytest.mark.vllm
def test_prefix_cache_has_the_shared_prefixes_of_the_trace(tmp_path, settings, make_spec):
    lengths_and_blocks = [
        (300, [1, 2, 3]), (300, [1, 2, 4]), (300, [5, 6, 7]), (384, [1, 2, 3]), (384, [1, 2, 3]), (200, [5, 9]),
        (200, []), (300, [5, 6, 8]),
    ]  # fmt: skip
    shared_blocks = [0, 2, 0, 2, 2, 1, 0, 2]
    prompts = trace_of(tmp_path, [(0, tokens, blocks) for tokens, blocks in lengths_and_blocks])
    spec = make_spec(
        prompts={**prompts, "columns": {}, "template": None},
        engine={
            "max_concurrency": 1,
            "warmup": False,
            "args": {**make_spec().engine.args, "max_model_len": 512, "block_size": BLOCK},
        },
    )
    assert complete(spec, settings).answered_requests == 8
    rows = query(settings, "select prompt_tokens, cached_tokens, output_tokens from completions order by sent_at_s")
    assert [row[0] for row in rows] == [tokens for tokens, _ in lengths_and_blocks]
    assert [row[1] for row in rows] == [blocks * BLOCK for blocks in shared_blocks]
    assert {row[2] for row in rows} == {3}
