"""Writing a file so that a reader, or a crash, finds the old one or the new one: aside, synced, renamed."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

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


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
