"""Folders of the tiny models: built once, under a lock, and rebuilt if damaged or outdated."""

import argparse
import ast
import fcntl
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.tiny_tokenizer import END, EOS

ROOT = Path(__file__).resolve().parent.parent
COMMON = ("tiny_folder", "tiny_llama", "tiny_shape", "tiny_tokenizer", "tiny_training")
STAMP = "tiny-model.json"  # written last: names the recipe and the content of every file


def describe_recipe(own: Iterable[str], seed: int, steps: int) -> str:
    """Digest the code of the model's modules and of the shared ones, without docstrings, with seed and steps. A changed
    recipe invalidates the cache."""
    code = "".join(read_code(Path(__file__).with_name(f"{name}.py")) for name in (*own, *COMMON))
    return f"{hashlib.sha256(code.encode()).hexdigest()} seed {seed} steps {steps}"


def read_code(path: Path) -> str:
    """Return a module's lines without docstrings."""
    lines = path.read_text().splitlines(keepends=True)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "".join(lines)


def save_model(folder: Path, tokenizer: Any, weights: Mapping[str, np.ndarray], config: dict[str, Any]) -> None:
    """Write tokenizer, weights and configuration for transformers and vLLM."""
    from safetensors.numpy import save_file

    tokenizer.save_pretrained(folder)
    save_file(dict(weights), folder / "model.safetensors", {"format": "pt"})
    eos, end = tokenizer.convert_tokens_to_ids([EOS, END])  # only generation knows both ends, as in Llama 3
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    write_json(folder / "config.json", {**config, **ids, "eos_token_id": eos})
    write_json(folder / "generation_config.json", {**ids, "eos_token_id": [eos, end]})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one of the model's small files."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_stamp(folder: Path, **facts: Any) -> None:
    """Write the stamp, which marks a folder as complete."""
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    write_json(folder / STAMP, {**facts, "files": files})


def is_finished(folder: Path, recipe: str) -> bool:
    """Return True if the folder has this recipe's model with all files unchanged."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in stamp["files"]}
        return bool(stamp["recipe"] == recipe and files == stamp["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def ensure_folder(folder: Path, recipe: str, build: Callable[[Path], None], force: bool = False) -> Path:
    """Return the folder of the model, built if missing, under a lock, and renamed into place when complete.

    `build` is called with a folder to create; it writes the stamp.
    """
    folder = folder.resolve()
    if not force and is_finished(folder, recipe):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second process waits here, then finds the first one's model
        if not force and is_finished(folder, recipe):
            return folder
        if folder.exists() and any(folder.iterdir()) and not (folder / STAMP).exists():
            raise FileExistsError(f"{folder} holds files but no {STAMP}, so it is no tiny model: name another folder")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as aside:
            new, old = Path(aside, "new"), Path(aside, "old")
            build(new)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
    return folder


def run_command(module: str, doc: str | None, ensure: Callable[..., Path]) -> None:
    """Make the command line of a tiny model."""
    default = ensure.__name__.removeprefix("ensure_").replace("_", "-")
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, help=f"folder for the model (default: .cache/{default} here)")
    parser.add_argument("--force", action="store_true", help="train again even if the model is there")
    options = parser.parse_args()
    print(ensure(options.output, force=options.force))
