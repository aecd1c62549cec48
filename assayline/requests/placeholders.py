"""Placeholders: what a model's prompt has where a picture, a sound or a video belongs.

vLLM puts media in the places of placeholders, and says nothing of one without a medium: it answers as if nothing had
been there. So they are counted here, in the rendered text, before anything is sent. What a placeholder is, is told by
the spec, else by the table below, else by the token that config.json names.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assayline.prompts import RowError
from assayline.records import MediaKind

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
NAMES: dict[MediaKind, str] = {"image": "an image", "audio": "a sound", "video": "a video"}


def find_placeholders(folder: Path, tokenizer: Any, given: Placeholders) -> Placeholders:
    """Those of a model; empty for one that takes text alone."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    if not isinstance(config, dict):
        config = {}
    found: dict[MediaKind, str] = {}
    for kind in NAMES:
        for key in _CONFIG_KEYS:
            token_id = config.get(key.format(kind=kind))
            if isinstance(token_id, int) and (token := tokenizer.convert_ids_to_tokens(token_id)):
                found.setdefault(kind, str(token))
    return {**found, **BY_MODEL_TYPE.get(str(config.get("model_type")), {}), **given}


def names_media(config: Any) -> bool:
    """Whether a config.json is of a model that takes media, as far as it says."""
    if not isinstance(config, dict):
        return False
    keys = {key.format(kind=kind) for kind in NAMES for key in _CONFIG_KEYS}
    return bool(keys & config.keys()) or str(config.get("model_type")) in BY_MODEL_TYPE


def list_kinds(messages: list[dict[str, Any]]) -> list[MediaKind]:
    """Kinds of the media in messages, in their order."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return [part["type"] for part in parts if part["type"] != "text"]


def check_kinds(kinds: list[MediaKind], placeholders: Placeholders) -> None:
    """Raises RowError for a medium that the model has no place for."""
    for kind in sorted(set(kinds) - set(placeholders)):
        takes = ", ".join(placeholders) or "text alone"
        raise RowError(
            "media_error",
            f"The prompt has {NAMES[kind]} in it, and the model takes {takes}, as far as its config.json says. If it "
            "does take it, name its placeholder in chat.placeholders.",
        )


def check_placeholders(text: str, kinds: list[MediaKind], placeholders: Placeholders) -> None:
    """Raises RowError unless the rendered text has one placeholder for each medium, and no other."""
    wanted = Counter(kinds)
    for kind, placeholder in placeholders.items():
        found = _count(text, placeholder)
        if placeholder and found != wanted[kind]:
            raise RowError(
                "media_error",
                f"The rendered prompt has {found} placeholders {placeholder!r} of kind {kind}, and the row has "
                f"{wanted[kind]} such media, expected as many. A chat template may leave media out, and a text may "
                "hold what stands for them.",
            )


def write_placeholder(placeholders: Placeholders, kind: MediaKind, number: int) -> str:
    """The text for the medium of that number (from 1) of its kind."""
    return placeholders[kind].replace("{i}", str(number))


def _count(text: str, placeholder: str) -> int:
    if "{i}" not in placeholder:
        return text.count(placeholder) if placeholder else 0
    before, _, after = placeholder.partition("{i}")
    return len(re.findall(rf"{re.escape(before)}\d+{re.escape(after)}", text))
