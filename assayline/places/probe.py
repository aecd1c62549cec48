"""Whether a store does what claims rest on: of two conditional puts of one key, the second one must fail.

A store that ignores the condition takes both, without a word, and then every worker has every shard.
"""

import uuid
from typing import Protocol

from assayline.errors import StoreError

FOLDER = "probes"


class Conditional(Protocol):
    """What of a store is probed."""

    @property
    def url(self) -> str: ...
    def create(self, key: str, content: bytes) -> bool: ...
    def delete(self, keys: list[str]) -> None: ...


def probe(store: Conditional) -> None:
    """Raises StoreError for a store that ignores conditions, OSError for one that does not answer or refuses."""
    key = f"{FOLDER}/{uuid.uuid4().hex}"
    try:
        first, second = store.create(key, b"first"), store.create(key, b"second")
        if not first or second:
            raise StoreError(
                f"The object store at {store.url} ignores conditional puts (If-None-Match): of two that made one key, "
                f"{'both' if second else 'none'} won. On it every worker would take every shard. Use a store that has "
                "them, such as S3, GCS, Azure, R2 or MinIO, or a shared folder (ASSAYLINE_DATA_DIR)."
            )
    finally:
        store.delete([key])
