"""What the prompt set's media say of the engine: which kinds it need not be ready for, and whether to remember them.

An engine for models that see keeps memory for the largest picture, and loads what sees, though no prompt may have one.
"""

import json
from pathlib import Path
from typing import Any

from assayline.records import Json, MediaKind
from assayline.requests.placeholders import names_media
from assayline.spec.evaluation import EvalSpec
from assayline.spec.sources import SyntheticSource

KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")


def choose_media_args(spec: EvalSpec, folder: Path | None) -> dict[str, Json]:
    """Arguments of vLLM that the spec does not give, for a model in `folder` that takes media; none for others.

    `language_model_only` where no prompt can have media; `limit_mm_per_prompt` 0 for each kind that none can have;
    `mm_processor_cache_gb` 0 where each medium is sent once. Where messages are columns, what is in them is not known.
    """
    if not _takes_media(folder):
        return {}
    kinds = _possible_kinds(spec)
    chosen: dict[str, Json] = {}
    if kinds is not None:
        chosen = {"limit_mm_per_prompt": {kind: 0 for kind in KINDS if kind not in kinds}}
        if not kinds:
            chosen = {"language_model_only": True}
    if kinds != set() and spec.prompts.repeats == 1 and spec.sampling.get("n") in (None, 1):
        chosen["mm_processor_cache_gb"] = 0
    given = set(spec.engine.args)
    if given & {"language_model_only", "limit_mm_per_prompt"}:
        given |= {"language_model_only", "limit_mm_per_prompt"}
    return {name: value for name, value in chosen.items() if name not in given}


def may_have_media(spec: EvalSpec, folder: Path | None) -> bool:
    """Whether prompts of this spec can have media, and the model in `folder` takes them."""
    return _possible_kinds(spec) != set() and _takes_media(folder)


def _takes_media(folder: Path | None) -> bool:
    return folder is not None and names_media(_read_config(folder))


def _possible_kinds(spec: EvalSpec) -> set[MediaKind] | None:
    prompts, columns = spec.prompts, spec.prompts.columns
    if isinstance(prompts.source, SyntheticSource):
        return set(prompts.source.media_kinds)
    return set(columns.media) if prompts.template is not None or columns.prompt is not None else None


def _read_config(folder: Path) -> Any:
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
