"""SHA-256 digests of files, cached for large files, so that a model of many GB is not read again before every run.

The cache key is device, inode, size and modification time in nanoseconds; a file is read again if any of them changed.
The cache is a small JSON file in the user's cache folder. Losing it costs only time.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from assayline.errors import ModelError

REMEMBER_FROM_BYTES = 64 * 1024 * 1024


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex. Raises ModelError if the file cannot be read."""
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
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from None


def memory_path() -> Path:
    """Return the path of the digest cache."""
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
    with contextlib.suppress(OSError):  # without a writable home, digests are computed again
        memory_path().parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=memory_path().parent)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(memory, file)
        Path(aside).replace(memory_path())


def digest_text(text: str) -> str:
    """Return the first 32 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest_bytes(content: bytes) -> str:
    """Return the first 32 hex digits of the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()[:32]


@cache
def digest_package() -> str:
    """Return a digest of the modules of the assayline that runs here: paths in the package, and contents."""
    root = Path(__file__).parent
    modules = (Path(folder) / name for folder, _, names in os.walk(root, followlinks=True) for name in names)
    return digest_json({str(path.relative_to(root)): _read(path) for path in modules if path.suffix == ".py"})


def digest_json(value: Any) -> str:
    """Return a digest of a JSON value that does not depend on the order of its keys."""
    return digest_text(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str))
