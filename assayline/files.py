"""Writing a file so that a reader, or a crash, finds the old one or the new one: aside, synced, renamed."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from assayline.errors import StoreError

MAKE_ROOM = "Free space or fix the folder's rights."
UNFINISHED = ".writing"
"""Ending of a file that is being written; its name begins with a dot. What a crash leaves may be removed."""


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Makes or replaces `path` with what `write` writes. Raises OSError, and then leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}{UNFINISHED}"
    try:
        with open(aside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # on a full disk its bytes are needed
            aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def storing(failure: str, hint: str) -> Iterator[None]:
    """Raises StoreError for an OSError of the block: what failed, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{failure}: {error}. {hint}") from error


def write_text(path: Path, text: str, hint: str) -> None:
    """Makes or replaces a file with a text; half a surrogate pair becomes a question mark.

    Raises StoreError if the file system refuses; `hint` is what its reader is to do then.
    """
    write_bytes(path, text.encode("utf-8", "replace"), hint)


def write_bytes(path: Path, content: bytes, hint: str) -> None:
    """Makes or replaces a file. Raises StoreError if the file system refuses, as `write_text` does."""
    with storing(f"{path} cannot be written", hint):
        replace_file(path, lambda file: file.write(content))


def write_json(path: Path, value: Any, hint: str) -> None:
    """Makes or replaces a file with a value, as JSON that a person can read. Raises StoreError."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", hint)


def check_data_folder(folder: Path) -> None:
    """Raises StoreError unless files can be made in the data folder, or in the one that it would be made in."""
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise StoreError(
            f"The data folder {folder} cannot be written: {error.strerror or error}. hint: set ASSAYLINE_DATA_DIR to "
            f"a folder that can be. {MAKE_ROOM}"
        ) from None


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
