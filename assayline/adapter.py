"""LoRA adapters: where their files are, what identifies them, and whether they fit a base."""

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assayline.digests import digest_file, digest_json
from assayline.errors import CLIENT, MachineError, ModelError
from assayline.files import find_obstacle, is_folder
from assayline.words import as_sentence

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
NAME = "adapter"
"""Name of the adapter in vLLM's requests, and on a server that assayline starts."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM allows for max_lora_rank."""

MARK = "+lora:"
"""Stands between a base's identity and its adapter's in a model_id."""

ROOT = "base_model.model."
"""Prefix of a tensor's name in an adapter's file."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter's files."""

    folder: Path
    digest: str
    """Identity of its content."""
    rank: int

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of vLLM that the adapter requires."""
        return {"enable_lora": True, "max_lora_rank": next((rank for rank in RANKS if rank >= self.rank), self.rank)}


def find_adapter(name: str, base: Path | None) -> Adapter:
    """Find an adapter and check it; `name` is a folder, or a hub id such as org/name, or org/name@revision.

    Raises ModelError for anything else, and for one that does not fit the base, as far as the base's weights are local.
    """
    folder = Path(name).expanduser().absolute() if is_folder(name) else _fetch(name)
    config = _read_config(folder)
    rank = config.get("r")
    if config.get("peft_type") != "LORA" or not isinstance(rank, int):
        raise ModelError(
            f"Invalid adapter {folder}: {CONFIG} describes {config.get('peft_type')!r}, not a LoRA adapter."
        )
    files = [folder / weights for weights in WEIGHTS if (folder / weights).is_file()]
    if not files:
        raise ModelError(f"Invalid adapter {folder}: it has none of {', '.join(WEIGHTS)}.")
    if base is not None and files[0].suffix == ".safetensors":
        _check_fit(files[0], base, config)
    digest = digest_json({path.name: digest_file(path) for path in (folder / CONFIG, files[0])})
    return Adapter(folder, digest[:32], rank)


def fetch_hub(kind: str, name: str, revision: str | None, patterns: Iterable[str], hint: str) -> Path:
    """Return the folder of a model or adapter (`kind`) of the hub, downloading files that are not cached.

    Raises ModelError, with `hint` if it cannot be read, and MachineError if the cache cannot be written.
    """
    what = f"{kind.capitalize()} {name + (f'@{revision}' if revision else '')!r}"
    try:
        hub, constants = map(importlib.import_module, ("huggingface_hub", "huggingface_hub.constants"))
    except ModuleNotFoundError:
        raise ModelError(
            f"{what} is not a folder, and huggingface_hub, which downloads it, is not installed. hint: {CLIENT}"
        ) from None
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=[*patterns]))
    except (OSError, ValueError) as error:  # huggingface_hub's errors are of these kinds
        if obstacle := find_obstacle(Path(constants.HF_HUB_CACHE)):
            raise MachineError(
                f"Cannot write to the cache of Hugging Face models {constants.HF_HUB_CACHE}: {obstacle}. hint: set "
                f"HF_HOME to a writable folder, or `{kind}` to a folder."
            ) from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{what} is neither a folder nor a readable Hugging Face {kind}: {as_sentence(reason)} hint: {hint}"
        ) from None


def _fetch(name: str) -> Path:
    hub_id, _, revision = name.partition("@")
    hint = "check the name; a revision follows an @."
    return fetch_hub("adapter", hub_id, revision or None, (CONFIG, *WEIGHTS), hint)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"Invalid adapter {folder}: no {CONFIG} in it. hint: pass a folder as PEFT saves it."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG} is not valid JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / CONFIG} is not a JSON object.")
    return config


def _check_fit(adapter: Path, base: Path, config: dict[str, Any]) -> None:
    """Raise ModelError if a matrix of the adapter has another width than the weight of the base that it is added to."""
    wanted = {name: shape for path in base.glob("*.safetensors") for name, shape in _read_shapes(path)}
    for name, shape in _read_shapes(adapter):
        part, _, end = name.removeprefix(ROOT).partition(".lora_")
        weight = wanted.get(f"{part}.weight")
        place = {"A.weight": 1, "B.weight": 0}.get(end)
        if weight and place is not None and (len(shape) != 2 or shape[place] != weight[place]):
            raise ModelError(
                f"The adapter {adapter.parent} does not fit {base}: its {part} is made for {shape[place]} features, "
                f"the model has {weight[place]}. hint: its base was {config.get('base_model_name_or_path')}."
            )


def _read_shapes(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the tensors of a safetensors file, whose header is JSON after its length in 8 bytes."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise ModelError(f"{path} is not a readable safetensors file: {error}.") from None
    yield from ((name, tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
