"""What limits of media reserve of an engine's memory: vLLM's own budget for a model that takes pictures and videos.

    python -m benchmarks.media_memory

The model is a Qwen2.5-VL whose processing is that of the published ones: pictures of up to 12.8 megapixels. Its weights
are few, and the budget does not depend on them. Shown are the tokens of the encoder's cache and the media that
vLLM runs through the encoder when it measures its memory. The last line is JSON.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.random_video_model import build_video_model

SIZE = {"shortest_edge": 4 * 28 * 28, "longest_edge": 16384 * 28 * 28}
"""Pixels of a picture, as Qwen/Qwen2.5-VL-3B-Instruct has them in preprocessor_config.json."""

HIDDEN = 2048
"""Of that model: a token of the encoder's cache is a vector of so many bfloat16."""

LIMITS: dict[str, dict[str, int]] = {
    "none": {},
    "2 pictures, 2 videos": {"image": 2, "video": 2},
    "pictures, no videos": {"video": 0},
    "1 picture, no videos": {"image": 1, "video": 0},
    "8 pictures, no videos": {"image": 8, "video": 0},
    "neither": {"image": 0, "video": 0},
}
"""limit_mm_per_prompt, as people would say it."""


def measure(model: Path, limits: dict[str, int]) -> dict[str, Any]:
    """vLLM's budget under these limits, at the sizes of a server with 32 thousand tokens of context."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    args = EngineArgs(
        model=str(model),
        max_model_len=32768,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        limit_mm_per_prompt=dict(limits),
        enforce_eager=True,
    )
    budget = MultiModalBudget(args.create_engine_config(), MULTIMODAL_REGISTRY, enable_cache=False)
    kind = budget.get_modality_with_max_tokens() if budget.mm_max_toks_per_item else None
    items = budget.mm_max_items_per_batch[kind] if kind else 0
    return {
        "cache_tokens": budget.encoder_cache_size,
        "cache_mib": round(budget.encoder_cache_size * HIDDEN * 2 / 2**20),
        "profiled": f"{items} {kind}" if kind else "nothing",
        "profiled_tokens": items * budget.mm_max_toks_per_item[kind] if kind else 0,
    }


def main() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory(prefix="assayline-media-") as name:
        model = build_video_model(Path(name), size=SIZE, positions=32768)
        found = {words: measure(model, limits) for words, limits in LIMITS.items()}
    print(
        "| limit_mm_per_prompt | encoder cache, tokens | MiB | measured with | tokens of it |\n|---|---:|---:|---|---:|"
    )
    for words, row in found.items():
        print(f"| {words} | {' | '.join(map(str, row.values()))} |")
    print(json.dumps({"benchmark": "media_memory", "limits": found}))


if __name__ == "__main__":
    main()
