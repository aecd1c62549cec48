"""Which place a run's folder stands for: itself, unless a file in it says that the run is in a store.

With ASSAYLINE_DATA_URL, `data/runs/RUN` is a copy of parts of the run at `URL/RUN`, and `place.txt` in it says so. So
whoever knows a run by its folder, and that is all of the program, need not know where it is.
"""

import contextlib
import json
from functools import lru_cache
from pathlib import Path

from assayline.errors import SpecError, StoreError
from assayline.files import MAKE_ROOM, write_bytes, write_text
from assayline.places.client import Client, check_url, do_at_once
from assayline.places.folder import Folder
from assayline.places.objects import Objects
from assayline.places.place import Place
from assayline.places.probe import probe

MARK_NAME = "place.txt"
MANIFEST_NAME = "run.json"
ENDED = ("completed",)


def place_of(run_dir: Path) -> Place:
    """The place of the run that has this folder on this machine. Raises SpecError where obstore is not installed."""
    url = find_url(run_dir)
    return Folder(run_dir) if url is None else _open(url, run_dir)


def find_url(run_dir: Path) -> str | None:
    """Where in a store a run is; None for one that is in its folder."""
    try:
        with open(run_dir / MARK_NAME, encoding="utf-8") as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def attach(run_dir: Path, url: str) -> None:
    """Makes a folder on this machine the copy of a run in a store. Raises StoreError or SpecError."""
    check_url(url)
    before = find_url(run_dir)
    if before not in (None, url):
        raise StoreError(
            f"{run_dir} is the copy of a run at {before}, and not of {url}. Set another ASSAYLINE_DATA_DIR."
        )
    if before is None and (run_dir / MANIFEST_NAME).exists():
        raise StoreError(f"{run_dir} is a run of its own, and no copy of {url}. Set another ASSAYLINE_DATA_DIR.")
    if before is None:
        write_text(run_dir / MARK_NAME, url + "\n", MAKE_ROOM)


def attach_url(url: str, runs_dir: Path) -> Path:
    """The folder on this machine of the run at a URL. Raises StoreError or SpecError."""
    url = url.rstrip("/")
    check_url(url)
    run_dir = runs_dir / url.rpartition("/")[2]
    attach(run_dir, url)
    return run_dir


def open_runs(data_dir: Path, data_url: str | None) -> Path:
    """The folder of runs on this machine; with a store, after a look at which runs it has and how they ended.

    Raises SpecError for a store that ignores conditions, StoreError for one that cannot be used.
    """
    runs_dir = data_dir / "runs"
    if data_url is None:
        return runs_dir
    url = data_url.rstrip("/")
    try:
        client = open_client(url)
        probe(client)
        runs = client.list_folders()
    except OSError as error:
        raise StoreError(f"The object store (ASSAYLINE_DATA_URL) cannot be used: {error}") from None

    def copy_manifest(run_id: str) -> None:
        run_dir = runs_dir / run_id
        if not _has_ended(run_dir):
            with contextlib.suppress(FileNotFoundError):  # no run, or one that is being made
                content = client.get(f"{run_id}/{MANIFEST_NAME}")
                attach(run_dir, f"{url}/{run_id}")
                write_bytes(run_dir / MANIFEST_NAME, content, MAKE_ROOM)

    try:
        do_at_once(copy_manifest, runs)
    except OSError as error:
        raise StoreError(f"The runs in {url} cannot be read: {error}") from None
    return runs_dir


@lru_cache(maxsize=8)
def open_client(url: str) -> Client:
    """The client of a prefix, one per process. Raises SpecError."""
    return Client(url)


def _has_ended(run_dir: Path) -> bool:
    """Whether the copy is of a manifest that hardly changes any more: `rebuild` reads it from the store again."""
    try:
        return json.loads((run_dir / MANIFEST_NAME).read_text(encoding="utf-8"))["state"] in ENDED
    except (OSError, ValueError, KeyError, TypeError):
        return False


@lru_cache(maxsize=256)
def _open(url: str, run_dir: Path) -> Place:
    if not url:
        raise SpecError(f"{run_dir / MARK_NAME} is empty. Expected the URL of a run; remove the folder, a copy of it.")
    return Objects(open_client(url), run_dir)
