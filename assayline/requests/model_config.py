"""Facts about prompts in a model's config.json: context length, placeholders for media, and the engine arguments that
follow from them.

vLLM puts media in the places of placeholders, and says nothing of one without a medium: it answers as if nothing had
been there. So placeholders are counted here, in the rendered text, before anything is sent. What a placeholder is, is
told by the spec, else by the table below, else by the token that config.json names.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assayline.prompts import RowError
from assayline.records import Json, MediaKind
from assayline.spec.evaluation import EvalSpec

LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""Fields of config.json with the model's context length."""

ALREADY_SCALED = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""RoPE types whose max_position_embeddings is the scaled length, so that `factor` is not applied again."""

Placeholders = Mapping[MediaKind, str]
"""Text per kind. `{i}` in it stands for the number of the medium, from 1; an empty one is not written in prompts."""

BY_MODEL_TYPE: dict[str, Placeholders] = {
    "gemma3": {"image": "<start_of_image>"},
    "internvl_chat": {"image": "<image>", "video": "<video>"},
    "minicpmo": {"image": "(<image>./</image>)", "audio": "(<audio>./</audio>)", "video": "(<video>./</video>)"},
    "minicpmv": {"image": "(<image>./</image>)", "video": "(<video>./</video>)"},
    "paligemma": {"image": ""},
    "phi3_v": {"image": "<|image_{i}|>"},
    "phi4mm": {"image": "<|image_{i}|>", "audio": "<|audio_{i}|>"},
    "ultravox": {"audio": "<|audio|>"},
}
"""Models whose placeholder is another text than the token that config.json names (vLLM 0.32, `get_placeholder_str`)."""

_CONFIG_KEYS = ("{kind}_token_id", "{kind}_token_index")
NAMES: dict[MediaKind, str] = {"image": "an image", "audio": "audio", "video": "a video"}


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model folder's config.json; empty if there is no readable one."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def max_model_len_of(folder: Path, engine_args: Mapping[str, Any]) -> int | None:
    """Return the context's length in tokens: the engine argument, else what config.json says, else None.

    It is never less than vLLM's own figure, which can be lower still (`max_model_len: -1` fits it to free memory):
    refusing here what the engine would take is the worse mistake.
    """
    given = engine_args.get("max_model_len")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    return _length_in(read_config(folder))


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


def find_placeholders(folder: Path, tokenizer: Any, given: Placeholders) -> Placeholders:
    """Return the placeholders of a model; empty for a model that takes only text."""
    config = read_config(folder)
    found: dict[MediaKind, str] = {}
    for kind in NAMES:
        for key in _CONFIG_KEYS:
            token_id = config.get(key.format(kind=kind))
            if isinstance(token_id, int) and (token := tokenizer.convert_ids_to_tokens(token_id)):
                found.setdefault(kind, str(token))
    return {**found, **BY_MODEL_TYPE.get(str(config.get("model_type")), {}), **given}


def names_media(config: dict[str, Any]) -> bool:
    """Return whether a config.json declares a model that takes media."""
    keys = {key.format(kind=kind) for kind in NAMES for key in _CONFIG_KEYS}
    return bool(keys & config.keys()) or str(config.get("model_type")) in BY_MODEL_TYPE


def list_kinds(messages: list[dict[str, Any]]) -> list[MediaKind]:
    """Return the kinds of the media in messages, in their order."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return [part["type"] for part in parts if part["type"] != "text"]


def check_kinds(kinds: list[MediaKind], placeholders: Placeholders) -> None:
    """Raise RowError for a medium that the model does not take."""
    for kind in sorted(set(kinds) - set(placeholders)):
        takes = ", ".join(placeholders) or "text alone"
        raise RowError(
            f"The prompt has {NAMES[kind]} in it, and the model takes {takes}, as far as its config.json says. hint: "
            "if it does take it, name its placeholder in chat.placeholders.",
            "media_error",
        )


def check_placeholders(text: str, kinds: list[MediaKind], placeholders: Placeholders) -> None:
    """Raise RowError unless the rendered text has one placeholder for each medium, and no other."""
    wanted = Counter(kinds)
    for kind, placeholder in placeholders.items():
        found = _count(text, placeholder)
        if placeholder and found != wanted[kind]:
            raise RowError(
                f"The rendered prompt has {found} placeholders {placeholder!r} of kind {kind}, and the row has "
                f"{wanted[kind]} such media, expected as many. A chat template may leave media out, and a text may "
                "hold what stands for them.",
                "media_error",
            )


def write_placeholder(placeholders: Placeholders, kind: MediaKind, number: int) -> str:
    """Return the text for the medium of that number (from 1) of its kind."""
    return placeholders[kind].replace("{i}", str(number))


def _count(text: str, placeholder: str) -> int:
    if "{i}" not in placeholder:
        return text.count(placeholder) if placeholder else 0
    before, _, after = placeholder.partition("{i}")
    return len(re.findall(rf"{re.escape(before)}\d+{re.escape(after)}", text))


def choose_media_args(spec: EvalSpec, folder: Path | None) -> dict[str, Json]:
    """Return vLLM arguments that the spec leaves out, for a model in `folder` that takes media; empty for others.

    `language_model_only` where no prompt can have media; `limit_mm_per_prompt` 0 for each kind that none can have;
    `mm_processor_cache_gb` 0 where each medium is sent once. Where messages are columns, what is in them is not known.
    """
    if not _takes_media(folder):
        return {}
    kinds = _possible_kinds(spec)
    chosen: dict[str, Json] = {}
    if kinds is not None:
        chosen = {"limit_mm_per_prompt": {kind: 0 for kind in NAMES if kind not in kinds}}
        if not kinds:
            chosen = {"language_model_only": True}
    if kinds != set() and spec.prompts.repeats == 1 and spec.sampling.get("n") in (None, 1):
        chosen["mm_processor_cache_gb"] = 0
    given = set(spec.engine.args)
    if given & {"language_model_only", "limit_mm_per_prompt"}:
        given |= {"language_model_only", "limit_mm_per_prompt"}
    return {name: value for name, value in chosen.items() if name not in given}


def may_have_media(spec: EvalSpec, folder: Path | None) -> bool:
    """Return whether prompts of this spec can have media, and the model in `folder` takes them."""
    return _possible_kinds(spec) != set() and _takes_media(folder)


def _takes_media(folder: Path | None) -> bool:
    return folder is not None and names_media(read_config(folder))


def _possible_kinds(spec: EvalSpec) -> set[MediaKind] | None:
    prompts, columns = spec.prompts, spec.prompts.columns
    if prompts.source.media_kinds is not None:
        return set(prompts.source.media_kinds)
    return set(columns.media) if prompts.template is not None or columns.prompt is not None else None
