"""A run in an object store, with a copy of what this machine has read or written in the run's folder here.

A put is whole or absent, so nothing has another name while it is written. Parts, once there, never change: they are
copied here when they are read, many at a time, and not again. All else is read from the store each time.
"""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import BinaryIO

from assayline.places.client import Client, do_at_once
from assayline.places.listing import Listing


class Objects:
    """A Place below a prefix of a store. Used by several threads of a process."""

    is_far = True

    def __init__(self, client: Client, copy: Path) -> None:
        """`copy` is the run's folder on this machine."""
        self._client = client
        self._copy = copy
        self._lists: dict[str, Listing] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._client.url

    @property
    def advice(self) -> str:
        return "The object store must answer, and this machine's credentials must let it read and write there."

    def read(self, key: str) -> bytes:
        return self._client.get(key)

    def read_many(self, folder: str, names: Iterable[str]) -> dict[str, bytes]:
        def read(name: str) -> tuple[str, bytes | None]:
            with contextlib.suppress(OSError):
                return name, self._client.get(_join(folder, name))
            return name, None

        return {name: content for name, content in do_at_once(read, list(names)) if content is not None}

    def versions(self, folder: str, without: AbstractSet[str] = frozenset()) -> dict[str, object]:
        """By their ETags; of a store that lists none, by their contents."""
        tags = self._client.list_tags(folder)
        untold = [name for name, tag in tags.items() if tag is None and name not in without]
        return {**tags, **self.read_many(folder, untold)}

    def exists(self, key: str) -> bool:
        return self._client.exists(key)

    def create(self, key: str, content: bytes = b"") -> bool:
        return self._client.create(key, content)

    def note(self, key: str, content: bytes = b"", *, create: bool = True) -> None:
        self._client.put(key, content)

    def write(self, key: str, write: Callable[[BinaryIO], object]) -> None:
        content = io.BytesIO()
        write(content)
        self._client.put(key, content.getvalue())
        self._keep(key, content.getvalue())

    def names(self, folder: str, max_age_s: float = 0.0) -> list[str]:
        with self._lock:
            listing = self._lists.get(folder) or Listing()
        if not listing.is_good_for(max_age_s):
            listing = listing.renew(self._client, folder, is_complete=max_age_s == 0)
            with self._lock:
                self._lists[folder] = listing
        return list(listing.sizes)

    def fetch(self, folder: str, names: Iterable[str]) -> list[Path]:
        wanted = list(names)
        with self._lock:
            sizes = self._lists[folder].sizes if folder in self._lists else {}
        do_at_once(
            lambda name: self._keep(_join(folder, name), self._client.get(_join(folder, name))),
            [name for name in wanted if not _is_here(self._copy / folder / name, sizes.get(name))],
        )
        return [self._copy / folder / name for name in wanted]

    def share(self, key: str) -> None:
        self._client.put(key, (self._copy / key).read_bytes())

    def move(self, key: str, new: str) -> None:
        self._client.put(new, self._client.get(key))
        self._client.delete([key])
        with contextlib.suppress(FileNotFoundError):
            (self._copy / key).replace(self._copy / new)

    def clear(self, folder: str) -> None:
        self._client.delete([_join(folder, name) for name, _ in self._client.list_objects(folder)])

    def remove(self, key: str) -> None:
        self._client.delete([key])

    def _keep(self, key: str, content: bytes) -> None:
        """Keeps a copy, whole or not at all; several processes may do so at once. It can be had again."""
        path = self._copy / key
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.parent / f".{path.name}.{os.getpid()}-{threading.get_ident()}.copying"
        try:
            aside.write_bytes(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_here(path: Path, size: int | None) -> bool:
    try:
        return size in (None, path.stat().st_size)
    except OSError:
        return False
