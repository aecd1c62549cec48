"""Shards that were taken over from a worker that had fallen silent, noted in the run's folder for ever.

Such a worker may have been stopped between its last look at its lease and its last part, so a request of such a shard
may have two answers. The one that is loaded first counts (`ingest.py`).
"""

import os
from pathlib import Path

TAKEN_OVER = "taken-over"


def note_takeover(run_dir: Path, shard: str) -> None:
    """Before the shard is claimed once more. Raises OSError."""
    folder = run_dir / TAKEN_OVER
    folder.mkdir(exist_ok=True)
    (folder / shard).touch()


def list_takeovers(run_dir: Path) -> list[str]:
    """Shards that were taken over in any attempt."""
    try:
        return sorted(os.listdir(run_dir / TAKEN_OVER))  # noqa: PTH208 - names are what is wanted
    except FileNotFoundError:
        return []
