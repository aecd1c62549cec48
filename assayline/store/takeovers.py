"""Names of before, for modules that are being replaced; to be deleted with them."""

from pathlib import Path

from assayline.store.ingest import TAKEN_OVER


def note_takeover(run_dir: Path, shard: str) -> None:
    """Note a shard that was taken over from a silent worker. Raises OSError."""
    (run_dir / TAKEN_OVER).mkdir(parents=True, exist_ok=True)
    (run_dir / TAKEN_OVER / shard).touch()


def list_takeovers(run_dir: Path) -> list[str]:
    """List the shards that were taken over in any attempt."""
    return sorted(path.name for path in (run_dir / TAKEN_OVER).glob("*"))
