"""The identity of a spec's model: its content, or the name under which a server offers it.

vLLM's own `compute_hash` is a compile-cache key and not an identity: it stays equal after a weight byte is flipped, and
differs for the same files in another folder. A hub model is therefore identified by its resolved commit, and a folder
by a SHA-256 over its files, without those that no engine reads.
"""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

from assayline.adapter import MARK, Adapter, fetch_hub, find_adapter
from assayline.digests import digest_file
from assayline.errors import ModelError
from assayline.files import is_folder
from assayline.spec.conflicts import NAME_ADAPTER
from assayline.spec.evaluation import EvalSpec

SERVED = "served"
TOKENIZERS = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "tokenization*.py",
)
TEMPLATES = ("chat_template*",)
NOT_READ = (".*", "__pycache__", "checkpoint-*")
"""Folders inside a model folder that are not digested: caches and a trainer's checkpoints."""
IRRELEVANT = (
    ".*",
    "*.md",
    *("README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.pdf"),
    *("*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.tflite", "*.pth"),
)
"""Files that no engine reads: texts, images, and weights for other libraries. Any other file may decide answers."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Where a model's files are, and the digest that identifies their content."""

    folder: Path | None
    """None for a model that is identified only by its server's name for it."""
    model_id: str
    tokenizer_id: str
    adapter: Adapter | None = None


def identify_spec_model(spec: EvalSpec) -> ModelIdentity:
    """Identify a spec's model, by content if it has files. Raises ModelError.

    A running server that renders chats itself needs no local files. Then the model is identified by its name alone,
    even if a hub has files of that name, because the server may serve other content. If it has files, the server's name
    for it counts too, because one server may have several adapters of one base.
    """
    if not spec.engine.is_remote:
        return identify_model(spec.model, spec.revision, spec.adapter)
    if spec.engine.sends_messages and not is_folder(spec.model):
        return ModelIdentity(None, f"{SERVED}:{spec.engine.server.model or spec.model}", SERVED)
    try:
        found = identify_model(spec.model, spec.revision)
    except ModelError as error:
        raise ModelError(
            f"{error} The completions endpoint takes token ids, so it needs the model's tokenizer: set `model` to its "
            "folder or hub id and engine.server.model to the server's name for it, or set engine.server.endpoint to "
            "chat, where the server renders."
        ) from None
    name = spec.model_name
    return found if name == spec.model else replace(found, model_id=f"{SERVED}:{name}@{found.model_id}")


def identify_model(model: str, revision: str | None = None, adapter: str | None = None) -> ModelIdentity:
    """Find the files of a model, and of its LoRA adapter, and identify them. Raises ModelError."""
    base = _identify_base(model, revision)
    if adapter is None:
        return base
    found = find_adapter(adapter, base.folder)
    return replace(base, model_id=f"{base.model_id}{MARK}{found.digest}", adapter=found)


def _identify_base(model: str, revision: str | None) -> ModelIdentity:
    """Find a model's files and identify them.

    A folder is digested file by file; a hub id is resolved to a commit, downloading the tokenizer's files if they are
    not cached. Raises ModelError for anything else, and for folders without a readable config.json.
    """
    try:
        folder = Path(model).expanduser()
        is_local = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, or an unknown ~user
        raise ModelError(
            f"Invalid model path {model!r:.200}: {error!s:.200}. hint: pass a folder or a Hugging Face id such as "
            "org/name."
        ) from None
    if is_local:
        _check_folder(folder)
        return ModelIdentity(
            folder,
            f"sha256:{_digest_files(folder, ('*',), IRRELEVANT)}",
            f"sha256:{_digest_files(folder, TOKENIZERS + TEMPLATES)}",
        )
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or folder.exists():
        raise ModelError(
            f"Model path {model} is not a folder. hint: pass a folder with config.json, weights and tokenizer, or a "
            "Hugging Face id such as org/name; `python -m examples.tiny_model` builds the examples' tiny model."
        )
    hint = "check the name, HF_TOKEN for gated models, and HF_HUB_OFFLINE."
    folder = fetch_hub("model", model, revision, ("*.json", *TOKENIZERS, *TEMPLATES), hint)
    return ModelIdentity(folder, f"{model}@{folder.name}", f"{model}@{folder.name}")


def _check_folder(folder: Path) -> None:
    config = folder / "config.json"
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (folder / "adapter_config.json").exists():
            raise ModelError(
                f"Invalid model folder {folder}: it is an adapter, not a model. hint: {NAME_ADAPTER}."
            ) from None
        raise ModelError(
            f"Invalid model folder {folder}: no config.json in it. hint: pass a folder in Hugging Face layout: "
            "config.json, *.safetensors and the tokenizer's files."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{config} is not valid JSON: {error}. hint: download or build the model again.") from None


def _digest_files(folder: Path, patterns: tuple[str, ...], left_out: tuple[str, ...] = ()) -> str:
    def is_one(name: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    names: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_one(name, NOT_READ)]
        found = (Path(root, name) for name in files if is_one(name, patterns) and not is_one(name, left_out))
        names += [path.relative_to(folder).as_posix() for path in found if path.is_file()]
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}\0{digest_file(folder / name)}\n".encode())
    return total.hexdigest()[:32]
