"""Names of before, for modules that are being replaced; to be deleted with them."""

from pathlib import Path
from typing import Any

from assayline.files import MAKE_ROOM, write_json, write_text


def write_run_text(run_dir: Path, key: str, text: str) -> None:
    """Write a text into a run's folder. Raises StoreError."""
    write_text(run_dir / key, text, MAKE_ROOM)


def write_run_json(run_dir: Path, key: str, value: Any) -> None:
    """Write a value as JSON into a run's folder. Raises StoreError."""
    write_json(run_dir / key, value, MAKE_ROOM)


def share_file(run_dir: Path, key: str) -> None:
    """Do nothing."""


def fetch_file(run_dir: Path, key: str) -> Path:
    """Return the path of a file of a run."""
    return run_dir / key


def has_file(run_dir: Path, key: str) -> bool:
    """Return whether a run has such a file."""
    return (run_dir / key).exists()
