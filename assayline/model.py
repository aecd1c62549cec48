"""The identity of a spec's model is its content, or the name that a server gives it.

vLLM's own `compute_hash` is a compile-cache key, not an identity: it is equal after a weight byte is flipped and
differs for the same files in another folder. So a hub model is named by its resolved commit, and a folder by a
sha256 over the files that decide its answers.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

from assayline.digests import digest_file
from assayline.errors import ModelError
from assayline.spec.evaluation import EvalSpec
from assayline.words import as_sentence

SERVED = "served"
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
CONFIGS = ("config.json", "generation_config.json", "*processor_config.json", "params.json")
TOKENIZERS = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "*.tiktoken",
    "tokenization*.py",
)
TEMPLATES = ("chat_template*",)
CODE = ("*.py",)
"""Of models that bring their own, for trust_remote_code."""
NOT_READ = (".*", "__pycache__", "checkpoint-*")
"""Folders inside a model's: caches, and what a trainer has saved on the way."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Where a model's files are, and what names their content."""

    folder: Path | None
    """None of a model that is known by its server's name for it alone."""
    model_id: str
    tokenizer_id: str


def identify_spec_model(spec: EvalSpec) -> ModelIdentity:
    """By content where there are files. Raises ModelError.

    A server that runs already and renders for itself needs no files here. Then the model is known by its name alone,
    whether or not some hub has files of that name: what they hold need not be what answers.
    """
    if not spec.engine.is_remote:
        return identify_model(spec.model, spec.revision)
    if spec.engine.sends_messages and not _is_folder(spec.model):
        return ModelIdentity(None, f"{SERVED}:{spec.engine.server.model or spec.model}", SERVED)
    try:
        return identify_model(spec.model, spec.revision)
    except ModelError as error:
        raise ModelError(
            f"{error} The endpoint completions gets token ids, for which the model's tokenizer is needed: set `model` "
            "to its folder or hub id, and engine.server.model to the server's name for it; or set "
            "engine.server.endpoint to chat, and the server renders."
        ) from None


def _is_folder(model: str) -> bool:
    try:
        return Path(model).expanduser().is_dir()
    except (OSError, RuntimeError):
        return False


def identify_model(model: str, revision: str | None = None) -> ModelIdentity:
    """Finds a model's files and identifies them.

    A folder is digested file by file; a hub id is resolved to a commit (downloading what a tokenizer needs, if it is
    not cached). Raises ModelError for what is neither, and for folders without a readable config.json.
    """
    try:
        folder = Path(model).expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, a ~user that is not there
        raise ModelError(
            f"Model {model!r:.200} is no path: {error!s:.200}. Give a folder, or a Hugging Face id such as org/name."
        ) from None
    if is_folder:
        _check_folder(folder)
        return ModelIdentity(
            folder,
            f"sha256:{_digest_files(folder, WEIGHTS + CONFIGS + CODE + TOKENIZERS + TEMPLATES)}",
            f"sha256:{_digest_files(folder, TOKENIZERS + TEMPLATES)}",
        )
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or folder.exists():
        raise ModelError(
            f"Model folder {model} is not a folder. Give a folder with config.json, weights and "
            "tokenizer, or a Hugging Face id such as org/name. The tiny model of the examples is built "
            "by `python -m examples.tiny_model`."
        )
    return _identify_hub_model(model, revision)


def _identify_hub_model(model: str, revision: str | None) -> ModelIdentity:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*CONFIGS, *TOKENIZERS, *TEMPLATES]))
    except (OSError, ValueError, HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"Model {model!r} is neither a folder nor a Hugging Face model that can be read: {as_sentence(reason)} "
            "Check the name, HF_TOKEN for gated models, and HF_HUB_OFFLINE."
        ) from None
    return ModelIdentity(folder, f"{model}@{folder.name}", f"{model}@{folder.name}")


def _check_folder(folder: Path) -> None:
    config = folder / "config.json"
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"Model folder {folder} has no config.json. Expected a folder in Hugging Face's layout: "
            "config.json, *.safetensors and the tokenizer's files."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{config} cannot be read as JSON: {error}. Download or build the model again.") from None


def _digest_files(folder: Path, patterns: tuple[str, ...]) -> str:
    names: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not any(fnmatch(name, pattern) for pattern in NOT_READ)]
        found = (Path(root, name) for name in files if any(fnmatch(name, pattern) for pattern in patterns))
        names += [path.relative_to(folder).as_posix() for path in found if path.is_file()]
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}\0{digest_file(folder / name)}\n".encode())
    return total.hexdigest()[:32]
