"""Shards that were taken over from a worker that had fallen silent, noted with the run for ever.

Such a worker may have been stopped between its last look at its lease and its last part, so a request of such a shard
may have two answers. The one that is loaded first counts (`ingest.py`).
"""

from pathlib import Path

from assayline.errors import StoreError
from assayline.places.home import place_of

TAKEN_OVER = "taken-over"


def note_takeover(run_dir: Path, shard: str) -> None:
    """Before the shard is claimed once more. Raises OSError."""
    place_of(run_dir).note(f"{TAKEN_OVER}/{shard}")


def list_takeovers(run_dir: Path) -> list[str]:
    """Shards that were taken over in any attempt. Raises StoreError."""
    place = place_of(run_dir)
    try:
        return sorted(place.names(TAKEN_OVER))
    except OSError as error:
        raise StoreError(f"{place.name}/{TAKEN_OVER} cannot be read: {error}. {place.advice}") from error
