"""Atomic file writes: a reader, or a crash, finds either the old file or the new one. Folders of Linux's limits."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from assayline.errors import StoreError

MAKE_ROOM = "free space or fix the folder's permissions."
UNFINISHED = ".writing"
"""Suffix of a file that is being written; its name begins with a dot. Leftovers of a crash may be removed."""


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace `path` with the output of `write`. Raises OSError and then leaves no temporary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}{UNFINISHED}"
    try:
        with open(aside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # frees its bytes when the disk is full
            aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def storing(failure: str, hint: str) -> Iterator[None]:
    """Convert an OSError in the block to a StoreError that states what failed, why, and the next step."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{failure}: {error}. hint: {hint}") from error


def is_folder(name: str) -> bool:
    """Return True if a name is that of a folder; False if it cannot be a path, such as an unknown ~user."""
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError):
        return False


Value = TypeVar("Value")


def read_kept(path: Path, parse: Callable[[str], Value], missing: Value, what: str, hint: str) -> Value:
    """Return the parsed text of a file, or `missing` without the file. Raises StoreError if it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path}, {what}, cannot be read: {reason}. hint: restore a copy of it, or {hint}") from None


def write_text(path: Path, text: str, hint: str) -> None:
    """Create or replace a file with a text; lone surrogates become question marks.

    Raises StoreError with `hint` if the file system refuses.
    """
    write_bytes(path, text.encode("utf-8", "replace"), hint)


def write_bytes(path: Path, content: bytes, hint: str) -> None:
    """Create or replace a file. Raises StoreError with `hint` if the file system refuses."""
    with storing(f"Cannot write {path}", hint):
        replace_file(path, lambda file: file.write(content))


def write_json(path: Path, value: Any, hint: str) -> None:
    """Create or replace a file with a value as indented JSON. Raises StoreError with `hint`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", hint)


def check_data_folder(folder: Path) -> None:
    """Raise StoreError unless the data folder can be written and stays after a Ray job."""
    if "working_dir_files" in folder.absolute().parts:
        raise StoreError(
            f"The data folder {folder} is in the working folder of a Ray job, which Ray deletes. hint: set "
            "ASSAYLINE_DATA_DIR to a folder that stays."
        )
    if reason := find_obstacle(folder):
        raise StoreError(
            f"Cannot write to the data folder {folder}: {reason}. hint: set ASSAYLINE_DATA_DIR to a writable folder, "
            f"or {MAKE_ROOM}"
        )


def find_caches(environ: Mapping[str, str]) -> Path:
    """Return the folder of the caches of the user's programs."""
    return Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path's raises


def find_obstacle(folder: Path) -> str | None:
    """Return why no file can be made in a folder, or in the nearest one that exists above it; None if it can."""
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror or str(error)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its file names survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_memory_groups(root: Path) -> list[Path]:
    """Return the folders of this process's memory control groups and of their parents."""
    folders = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):
                base = root / "sys/fs/cgroup" / controllers
                group = base / name.lstrip("/")
                folders += [group, *(folder for folder in group.parents if folder.is_relative_to(base))]
    return folders


def measure_folder(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it is gone
            total += path.lstat().st_size if path.is_file() else 0
    return total
