"""A run in a folder that all its processes see, on a local or a network file system.

Small marks are overwritten in place and never renamed: a network file system shows what is in a file that is opened
anew, but may show an old name for a minute.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import BinaryIO

from assayline.files import MAKE_ROOM, replace_file


class Folder:
    """A Place in a folder, which is made when something is written."""

    is_far = False

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    @property
    def advice(self) -> str:
        return MAKE_ROOM

    def read(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def read_many(self, folder: str, names: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for name in names:
            with contextlib.suppress(OSError):
                found[name] = (self._root / folder / name).read_bytes()
        return found

    def versions(self, folder: str, without: AbstractSet[str] = frozenset()) -> dict[str, object]:
        """By their contents: a network file system may show a time of before."""
        return dict(self.read_many(folder, set(self.names(folder)) - without))

    def exists(self, key: str) -> bool:
        return (self._root / key).exists()

    def create(self, key: str, content: bytes = b"") -> bool:
        try:
            descriptor = self._open(key, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        _fill(descriptor, content)
        return True

    def note(self, key: str, content: bytes = b"", *, create: bool = True) -> None:
        _fill(self._open(key, os.O_CREAT if create else 0), content)

    def write(self, key: str, write: Callable[[BinaryIO], object]) -> None:
        replace_file(self._root / key, write)

    def names(self, folder: str, max_age_s: float = 0.0) -> list[str]:
        try:
            return os.listdir(self._root / folder)  # noqa: PTH208 - names are what is wanted
        except FileNotFoundError:
            return []

    def fetch(self, folder: str, names: Iterable[str]) -> list[Path]:
        return [self._root / folder / name for name in names]

    def share(self, key: str) -> None:
        pass  # it is there

    def move(self, key: str, new: str) -> None:
        (self._root / key).replace(self._root / new)

    def clear(self, folder: str) -> None:
        if (self._root / folder).exists():
            shutil.rmtree(self._root / folder)
        (self._root / folder).mkdir(parents=True)

    def remove(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)

    def _open(self, key: str, flags: int) -> int:
        path = self._root / key
        try:
            return os.open(path, os.O_WRONLY | flags, 0o666)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            path.parent.mkdir(exist_ok=True)
            return os.open(path, os.O_WRONLY | flags, 0o666)


def _fill(descriptor: int, content: bytes) -> None:
    """Writes the whole of a small file in place, by one write unless the disk is nearly full."""
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        if os.fstat(descriptor).st_size > len(content):
            os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
