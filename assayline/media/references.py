"""Media of rows: from a value to a reference, and storage for the content of references.

A value is a path, a file:// or data: URI, base64, bytes, a URL, or a value of Hugging Face's Image and Audio columns.
The form alone decides: text is a URI if it has a known scheme, base64 if it is long, has only characters of base64 and
is not the path of a file, and a path otherwise. Files stay where they are; content from a row or a URL is stored once,
in the run's folder under its digest. Requests carry references, which a worker or a later attempt can follow.
"""

import base64
import binascii
import io
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import url2pathname

from assayline.digests import digest_bytes, digest_file
from assayline.errors import MediaError, ModelError
from assayline.files import MAKE_ROOM, write_bytes
from assayline.media.fetch import Fetcher
from assayline.media.sounds import encode_wav
from assayline.records import Media, MediaKind

MEDIA_FOLDER = "media"
"""Folder for media in a run's folder."""

BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
SHORTEST_BASE64 = 64
"""In characters. No image or audio clip is smaller, so shorter text is a path, even a mistyped one."""

LONGEST_PATH = 4096


class MediaStore:
    """Media of one run. Without a folder, as in a dry run, nothing is stored."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir

    def refer(self, kind: MediaKind, path: Path) -> Media:
        """Return a reference to a file in its place. Raises MediaError if the file cannot be read."""
        try:
            found = path.stat()
            if not path.is_file():
                raise MediaError(f"{_name(kind)} {path} is not a regular file. hint: give the path of a file.")
            digest = _digest(path.absolute(), found.st_size, found.st_mtime_ns, found.st_ino)
        except (OSError, ValueError, ModelError) as error:  # ValueError: a NUL in the name
            reason = ((error.strerror if isinstance(error, OSError) else None) or str(error)).removesuffix(".")
            raise MediaError(
                f"{_name(kind)} {str(path)!r:.300} cannot be read: {reason}. hint: give the path of a file; "
                "relative paths start at the data file's folder."
            ) from None
        return Media(kind=kind, path=str(path.absolute()), digest=digest)

    def keep(self, kind: MediaKind, content: bytes) -> Media:
        """Store content from a row or a URL once. Raises MediaError if it is empty, StoreError if writing fails."""
        if not content:
            raise MediaError(f"{_name(kind)} is empty (0 bytes), expected the content of a file.")
        digest = digest_bytes(content)
        path = Path(MEDIA_FOLDER, digest[:2], digest)
        if self._run_dir is not None and not (self._run_dir / path).exists():
            write_bytes(self._run_dir / path, content, MAKE_ROOM)
        return Media(kind=kind, path=str(path), digest=digest)


def find_media(media: Media, run_dir: Path) -> Media:
    """Return the reference with an absolute path, in the run's folder as it is now."""
    if not media["path"].startswith(f"{MEDIA_FOLDER}{os.sep}"):
        return media
    return {**media, "path": str(run_dir / media["path"])}


@lru_cache(maxsize=4096)
def _digest(path: Path, size: int, modified_ns: int, inode: int) -> str:
    """Return the digest of a file, from the cache if the file is unchanged. Many prompts may share an image."""
    return digest_file(path)[:32]


def _name(kind: MediaKind) -> str:
    return kind.capitalize()


class MediaReader:
    """Reader of values for one run. It makes references of them."""

    def __init__(self, media_store: MediaStore, fetcher: Fetcher) -> None:
        self._store = media_store
        self._fetcher = fetcher

    def read(self, kind: MediaKind, value: Any, folder: Path | None) -> list[Media]:
        """Return the references of a value or a list of values; none for None.

        Relative paths start at `folder` (None: the working folder). Raises MediaError.
        """
        if isinstance(value, list):
            if _is_samples(value):
                raise MediaError(f"The {kind} is a list of numbers without a sampling rate. hint: give a file.")
            return [self.read_one(kind, item, folder) for item in value if item is not None]
        return [] if value is None else [self.read_one(kind, value, folder)]

    def read_one(self, kind: MediaKind, value: Any, folder: Path | None) -> Media:
        """Return the reference of a value. Raises MediaError if it cannot be read or has an unknown form."""
        match value:
            case bytes() | bytearray() | memoryview():
                return self._store.keep(kind, bytes(value))
            case str() if not value.strip():
                raise MediaError(f"The {kind} is an empty text. hint: write null for a row without {kind}.")
            case str():
                return self._read_text(kind, value.strip(), folder)
            case Path():
                return self._store.refer(kind, (folder or Path()) / value)
            case {"bytes": bytes() as content}:
                return self._store.keep(kind, content)
            case {"path": str() as path}:
                return self._read_text(kind, path, folder)
            case {"url": str() as url}:
                return self._read_text(kind, url, folder)
            case {"array": array, "sampling_rate": int() as rate_hz}:
                return self._store.keep(kind, _write_sound(array, rate_hz))
            case _ if callable(getattr(value, "save", None)):  # an image that `datasets` has decoded
                return self._store.keep(kind, _write_image(value))
        raise MediaError(
            f"The {kind} is {value!r:.80}, expected a path, a file:// or data: URI, base64, bytes, a URL, or an object "
            "with bytes or path."
        )

    def _read_text(self, kind: MediaKind, text: str, folder: Path | None) -> Media:
        scheme = text[:8].partition(":")[0].lower()
        match scheme:
            case "data":
                return self._store.keep(kind, _read_data_uri(kind, text))
            case "http" | "https":
                return self._store.keep(kind, self._fetcher.fetch(kind, text))
            case "file":
                return self._store.refer(kind, _path_of(kind, text))
        if len(text) > LONGEST_PATH or (len(text) >= SHORTEST_BASE64 and not _exists(text, folder)):
            if BASE64.fullmatch(text):
                return self._store.keep(kind, _decode_base64(kind, text))
            if len(text) > LONGEST_PATH:
                raise MediaError(f"The {kind} is a text of {len(text)} characters, but neither a path nor base64.")
        if "://" in text:
            raise MediaError(f"The {kind} {text!r:.200} has an unknown scheme, expected file, data or http(s).")
        return self._store.refer(kind, _expand(kind, text, folder))


def _expand(kind: MediaKind, text: str, folder: Path | None) -> Path:
    try:
        return (folder or Path()) / Path(text).expanduser()
    except RuntimeError:  # ~user does not exist
        raise MediaError(f"The {kind}'s path {text!r:.200} begins with a user that does not exist.") from None


def _exists(text: str, folder: Path | None) -> bool:
    try:
        return ((folder or Path()) / text).exists()
    except (OSError, ValueError):  # too long for a name, a NUL
        return False


def _path_of(kind: MediaKind, uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise MediaError(f"The {kind} {uri!r:.200} is on another machine, expected file:///path.")
    return Path(url2pathname(parts.path))


def _read_data_uri(kind: MediaKind, uri: str) -> bytes:
    head, comma, data = uri.partition(",")
    if not comma:
        raise MediaError(f"The {kind} is a data: URI without a comma ({uri!r:.80}), expected data:type;base64,content.")
    return _decode_base64(kind, data) if head.lower().endswith(";base64") else unquote_to_bytes(data)


def _decode_base64(kind: MediaKind, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"The {kind} is not base64: {error}. It begins with {text[:40]!r}.") from None


def _is_samples(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], (int, float)) and not isinstance(value[0], bool)


def _write_image(image: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG" if image.mode not in ("CMYK", "YCbCr", "F") else "TIFF")
    return content.getvalue()


def _write_sound(array: Any, rate_hz: int) -> bytes:
    import numpy as np

    samples = np.asarray(array, dtype=np.float32)
    if samples.ndim == 2 and samples.shape[0] < samples.shape[1]:
        samples = samples.T  # `datasets` puts channels first, files frames
    return encode_wav(samples, rate_hz, is_float=True)
