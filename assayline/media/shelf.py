"""Where the media of a run are: files stay where they are, and what came inside a row is kept once per content.

Requests carry references. A worker, or a later attempt, finds a file by its path, and what a data URI, bytes or a URL
held in the run's folder, under its digest.
"""

import os
from functools import lru_cache
from pathlib import Path

from assayline.digests import digest_bytes, digest_file
from assayline.errors import MediaError, ModelError
from assayline.files import MAKE_ROOM, write_bytes
from assayline.records import Media, MediaKind

SHELF_NAME = "media"
"""Folder in a run's folder."""


class Shelf:
    """The media of one run; without a folder, as in a dry run, nothing is kept."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir

    def refer(self, kind: MediaKind, path: Path) -> Media:
        """A file where it is. Raises MediaError where there is none to read."""
        try:
            found = path.stat()
            if not path.is_file():
                raise MediaError(f"{_name(kind)} {path} is no regular file, expected one.")
            digest = _digest(path.absolute(), found.st_size, found.st_mtime_ns, found.st_ino)
        except (OSError, ValueError, ModelError) as error:  # ValueError: a NUL in the name
            reason = ((error.strerror if isinstance(error, OSError) else None) or str(error)).removesuffix(".")
            raise MediaError(
                f"{_name(kind)} {str(path)!r:.300} cannot be read: {reason}. Expected a file; paths are relative to "
                "the data file's folder."
            ) from None
        return Media(kind=kind, path=str(path.absolute()), digest=digest)

    def keep(self, kind: MediaKind, content: bytes) -> Media:
        """What came inside a row, or from a URL, written once. Raises MediaError for nothing, StoreError."""
        if not content:
            raise MediaError(f"{_name(kind)} is empty (0 bytes), expected the content of a file.")
        digest = digest_bytes(content)
        path = Path(SHELF_NAME, digest[:2], digest)
        if self._run_dir is not None and not (self._run_dir / path).exists():
            write_bytes(self._run_dir / path, content, MAKE_ROOM)
        return Media(kind=kind, path=str(path), digest=digest)


def find_media(media: Media, run_dir: Path) -> Media:
    """The same with a path that is absolute, wherever the run's folder is now."""
    if not media["path"].startswith(f"{SHELF_NAME}{os.sep}"):
        return media
    return {**media, "path": str(run_dir / media["path"])}


@lru_cache(maxsize=4096)
def _digest(path: Path, size: int, modified_ns: int, inode: int) -> str:
    """Remembered: many prompts may show one picture."""
    return digest_file(path)[:32]


def _name(kind: MediaKind) -> str:
    return kind.capitalize()
