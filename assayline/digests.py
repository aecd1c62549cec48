"""sha256 of files, remembered for large ones, so that a model of many GB is not read anew before every run.

What is remembered is bound to device, inode, size and modification time in nanoseconds; a file that changed in any of
these is read again. The memory is a small JSON file in the user's cache folder; losing it costs time only.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from assayline.errors import ModelError

REMEMBER_FROM_BYTES = 64 * 1024 * 1024


def digest_file(path: Path) -> str:
    """sha256 of a file's content, as hex. Raises ModelError if it cannot be read."""
    try:
        found = path.stat()
        key = f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"
        if found.st_size < REMEMBER_FROM_BYTES:
            return _read(path)
        memory = _load()
        if key not in memory:
            memory[key] = _read(path)
            _save(memory)
        return memory[key]
    except OSError as error:
        raise ModelError(f"File {path} cannot be read: {error.strerror or error}.") from None


def memory_path() -> Path:
    """Where digests are remembered."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assayline" / "digests.json"


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load() -> dict[str, str]:
    try:
        memory = json.loads(memory_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _save(memory: dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # a read-only home costs time, nothing else
        memory_path().parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=memory_path().parent)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(memory, file)
        Path(aside).replace(memory_path())


def digest_text(text: str) -> str:
    """sha256 of a text, first 32 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest_bytes(content: bytes) -> str:
    """sha256 of bytes, first 32 hex digits."""
    return hashlib.sha256(content).hexdigest()[:32]


def digest_json(value: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return digest_text(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str))
