"""Names of before, for modules that are being replaced; to be deleted with them."""

from pathlib import Path

from assayline.errors import StoreError
from assayline.places.folder import Folder
from assayline.places.place import Place

MANIFEST_NAME = "run.json"


def place_of(run_dir: Path) -> Place:
    """Return the run's folder as a Place."""
    return Folder(run_dir)


def find_url(run_dir: Path) -> str | None:
    """Return None: every run is in its folder."""
    return None


def attach(run_dir: Path, url: str) -> None:
    """Raise StoreError: no run lives in an object store."""
    raise StoreError(f"{url} is an object store. Runs live in folders; give the run's id or its folder.")


def attach_url(url: str, runs_dir: Path) -> Path:
    """Raise StoreError: no run lives in an object store."""
    attach(runs_dir, url)
    return runs_dir


def open_runs(data_dir: Path, data_url: str | None) -> Path:
    """Return the folder of runs."""
    return data_dir / "runs"
