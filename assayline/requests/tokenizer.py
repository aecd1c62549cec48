"""Tokenizers of model folders, loaded without torch and without the index of transformers."""

import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from assayline.errors import CLIENT, ModelError

# A tokenizer needs no torch; a machine that only measures a server has none.
logging.getLogger("transformers").addFilter(lambda line: "PyTorch was not found" not in line.getMessage())

LIBRARIES = ("transformers", "tokenizers")
_modules: dict[str, ModuleType] = {}
"""Modules of transformers that were imported without torch."""
_hiding = threading.Lock()


_GENERAL_CLASSES = {
    "LlamaTokenizer": "models.llama.tokenization_llama",
    "PreTrainedTokenizer": "tokenization_python",
    "PreTrainedTokenizerFast": "tokenization_utils_tokenizers",
}
"""Modules of the classes that most models name."""


class _NeedsIndexError(Exception):
    """A tokenizer needs a name of `transformers` itself."""


@contextlib.contextmanager
def _without_torch(is_indexed: bool) -> Iterator[None]:
    """Hide torch from transformers, which takes most of its import time and which no tokenizer needs.

    Most of the rest is an index of 1,500 files and of all installed distributions. Unless `is_indexed`, `transformers`
    and `transformers.models` are packages without it, whose modules load one by one.
    Afterwards other code, such as a user's scorer, can import all of it in full.
    """
    with _hiding:
        if "torch" in sys.modules or "transformers" in sys.modules:
            yield
            return
        list_distributions = importlib.metadata.packages_distributions
        importlib.metadata.packages_distributions = dict
        if is_indexed:
            _modules.clear()
        sys.modules.update(_modules)
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            if not _modules and not is_indexed:
                package = _add_package("transformers")
                version = importlib.metadata.version("transformers")
                vars(package).update(__version__=version, models=_add_package("transformers.models"))
            yield
        finally:
            importlib.metadata.packages_distributions = list_distributions
            del sys.modules["torch"]
            names = [name for name in list(sys.modules) if name.split(".")[0] == "transformers"]
            _modules.update({name: sys.modules.pop(name) for name in names})


def _add_package(name: str) -> ModuleType:
    """Add a package without running its `__init__`. Another name than its modules' raises _NeedsIndexError."""

    def load_module(wanted: str) -> Any:
        file = _GENERAL_CLASSES.get(wanted)
        if file is None and (wanted.startswith("__") or wanted.endswith("Fast")):  # tried without Fast next
            raise AttributeError(wanted)
        if importlib.util.find_spec(f"{name}.{wanted}") is not None:
            return importlib.import_module(f"{name}.{wanted}")
        if file is None:
            raise _NeedsIndexError
        return getattr(importlib.import_module(f"transformers.{file}"), wanted)

    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    package.__getattr__ = load_module  # type: ignore[method-assign]
    return package


def _read_tokenizer(folder: Path, trust_remote_code: bool, is_indexed: bool = False) -> Any:
    with contextlib.nullcontext() if trust_remote_code else _without_torch(is_indexed):
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a model folder, from local files only. Raises ModelError."""
    try:
        try:
            tokenizer = _read_tokenizer(folder, trust_remote_code)
        except _NeedsIndexError:
            tokenizer = _read_tokenizer(folder, trust_remote_code, is_indexed=True)
        if tokenizer.chat_template is None:
            tokenizer.chat_template = _read_processor_template(folder)
    except Exception as error:  # a damaged tokenizer.json raises bare Exception
        if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] in LIBRARIES:
            raise ModelError(f"Prompts are tokenized by {error.name}, which is not installed. hint: {CLIENT}") from None
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"The tokenizer in {folder} cannot be loaded: {reason[0]} hint: the folder needs tokenizer.json, or "
            "another tokenizer that transformers knows, in addition to config.json."
        ) from None
    return tokenizer


def _read_processor_template(folder: Path) -> str | None:
    """Older multimodal models keep their template where only a processor looks."""
    file = folder / "chat_template.json"
    template = json.loads(file.read_text(encoding="utf-8")).get("chat_template") if file.is_file() else None
    return template if isinstance(template, str) else None


def find_backend(tokenizer: Any) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer that calls it unchanged; None for one with code of its own."""
    calls = (getattr(type(tokenizer), name, None) for name in ("__call__", "_encode_plus"))
    own = ("transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers")
    if tuple(getattr(call, "__module__", None) for call in calls) != own:
        return None
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer.backend_tokenizer
