"""Texts of a run that people may read, too: written and read as a whole, wherever the run is."""

import json
from pathlib import Path
from typing import Any

from assayline.errors import StoreError
from assayline.places.home import place_of


def write_run_text(run_dir: Path, key: str, text: str, hint: str = "") -> None:
    """Makes or replaces a text of a run; half a surrogate pair becomes a question mark.

    Raises StoreError if the file system, or the store, refuses; `hint` is what else its reader is to do then.
    """
    place, content = place_of(run_dir), text.encode("utf-8", "replace")
    try:
        place.write(key, lambda file: file.write(content))
    except OSError as error:
        raise StoreError(f"{place.name}/{key} cannot be written: {error}. {place.advice} {hint}".rstrip()) from error


def write_run_json(run_dir: Path, key: str, value: Any, hint: str = "") -> None:
    """Makes or replaces a text of a run with a value, as JSON that a person can read. Raises StoreError."""
    write_run_text(run_dir, key, json.dumps(value, indent=2, ensure_ascii=False) + "\n", hint)


def share_file(run_dir: Path, key: str) -> None:
    """Puts a file that was written into the run's folder on this machine where the run is. Raises StoreError."""
    place = place_of(run_dir)
    try:
        place.share(key)
    except OSError as error:
        raise StoreError(f"{place.name}/{key} cannot be written: {error}. {place.advice}") from error


def fetch_file(run_dir: Path, key: str) -> Path:
    """The path on this machine of a file of a run that nobody changes any more. Raises StoreError."""
    place = place_of(run_dir)
    folder, _, name = key.rpartition("/")
    try:
        [path] = place.fetch(folder, [name])
    except OSError as error:
        raise StoreError(f"{place.name}/{key} cannot be copied: {error}. {place.advice}") from error
    return path


def has_file(run_dir: Path, key: str) -> bool:
    """Whether a run has such a file. Raises StoreError for a place that cannot be asked."""
    place = place_of(run_dir)
    try:
        return place.exists(key)
    except OSError as error:
        raise StoreError(f"{place.name} cannot be read: {error}. {place.advice}") from error
