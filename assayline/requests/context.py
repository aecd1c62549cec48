"""How long a text the model takes, by its config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""Where config.json files say how long a text the model takes."""

ALREADY_SCALED = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""RoPE types whose max_position_embeddings is the scaled length, so that `factor` is not applied again."""


def max_model_len_of(folder: Path, engine_args: Mapping[str, Any]) -> int | None:
    """The context's length in tokens: the engine argument, else what config.json says, else None.

    It is never less than vLLM's own figure, which can be lower still (`max_model_len: -1` fits it to free memory):
    refusing here what the engine would take is the worse mistake.
    """
    given = engine_args.get("max_model_len")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _length_in(config) if isinstance(config, dict) else None


def _length_in(config: dict[str, Any]) -> int | None:
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, dict) and (length := _length_in(nested)) is not None:
            return length
    if _is_length(config.get("model_max_length")):  # Command-R: beyond max_position_embeddings, on purpose
        return int(config["model_max_length"])
    lengths = [int(config[key]) for key in LENGTH_KEYS if _is_length(config.get(key))]
    return int(min(lengths) * _rope_factor(config)) if lengths else None


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _rope_factor(config: dict[str, Any]) -> float:
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict) or "gemma3" in str(config.get("model_type")):
        return 1.0
    per_layer_type = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    factors = [
        part.get("factor") for part in per_layer_type if part.get("rope_type", part.get("type")) not in ALREADY_SCALED
    ]
    return max([1.0, *(float(factor) for factor in factors if isinstance(factor, (int, float)))])
