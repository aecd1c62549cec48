"""Where exports go: written aside, and put in their place when whole. What is there stays, unless it is to be replaced.

with new_file(path, force=False) as file:
    file.write(...)
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TextIO

from assayline.errors import SpecError, StoreError
from assayline.files import UNFINISHED, sync_folder

ADVICE = "Free space, or give another place with --output."


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[TextIO]:
    """A text file that is at `path` when the block ends well; left empty, it is not there, nor is one of before.

    Raises SpecError for a file that exists already, unless `force`, and StoreError.
    """
    check_free(path, force)
    aside = path.parent / f".{path.name}{UNFINISHED}"
    try:
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(aside, "w", encoding="utf-8", errors="replace", newline="") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                is_empty = file.tell() == 0
            if is_empty:
                path.unlink(missing_ok=True)
            else:
                check_free(path, force)
                aside.replace(path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, patterns: tuple[str, ...], force: bool) -> Iterator[Path]:
    """An empty folder that is at `path` when the block ends well, whole.

    `force` replaces a folder whose files all match `patterns`, as an export's do. Raises SpecError for a place that is
    taken, and StoreError.
    """
    check_free(path, force, patterns)
    aside = path.parent / f".{path.name}{UNFINISHED}"
    try:
        with _explained(path):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            yield aside
            check_free(path, force, patterns)
            if path.exists():
                shutil.rmtree(path)
            aside.replace(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_free(path: Path, force: bool, patterns: tuple[str, ...] | None = None) -> None:
    """Raises SpecError where something stands at `path` that is not to be replaced.

    `patterns` are names of files in a folder of an export; None: the export is one file.
    """
    if not path.exists():
        return
    if patterns is None and path.is_dir():
        raise SpecError(f"{path} is a folder, and this format is a file. Give the file's path with --output.")
    if patterns is not None and not path.is_dir():
        raise SpecError(f"{path} is a file, and this format is a folder of files. Give a folder with --output.")
    foreign = [entry.name for entry in path.iterdir() if not _is_ours(entry, patterns)] if patterns else []
    if foreign:
        raise SpecError(
            f"{path} holds {sorted(foreign)[0]}, which is of no such export, so that nothing there is replaced. Give a "
            "folder of its own with --output."
        )
    if not force and (patterns is None or any(path.iterdir())):
        raise SpecError(f"{path} exists already. Give another place with --output, or replace it with --force.")


def _is_ours(entry: Path, patterns: tuple[str, ...]) -> bool:
    return entry.is_file() and any(fnmatch(entry.name, pattern) for pattern in patterns)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}. {ADVICE}") from error
