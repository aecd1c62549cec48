"""The mirror: a copy of each run in an object store, in case the machine is lost.

`ASSAYLINE_MIRROR_URL` sets its location. A thread of the flow's process scans the run's folder for new and changed
files and uploads each as one object, `URL/RUN_ID/PATH`, independently of the writers. Only `assayline restore` reads it
back. `mirrored.jsonl` in the run's folder lists the copied files, so that a later attempt copies only the others.
"""

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from assayline.errors import SpecError, StoreError
from assayline.files import MAKE_ROOM, storing, write_bytes
from assayline.media.references import SHELF_NAME
from assayline.runs.locks import FLOW_LOCK
from assayline.runs.manifest import MANIFEST_NAME
from assayline.settings import Settings
from assayline.store.parts import PARTS
from assayline.store.score_files import FOLDER_NAME as JUDGED
from assayline.words import count, hide_secrets

AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]
Stamp = list[int]
"""Version of a file: size and modification time."""

RECORD_NAME = "mirrored.jsonl"
NOT_COPIED = {MANIFEST_NAME, RECORD_NAME, FLOW_LOCK}
"""Files at the top of a run's folder that are not copied; the manifest is copied last, separately."""
FOLDERS = (PARTS, SHELF_NAME, JUDGED)
UNCHANGING = (f"{PARTS}/", f"{SHELF_NAME}/")
"""Prefixes of files that never change after their rename."""
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION to credentials that may read and write there",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the path of a key file that may read and write there",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY to credentials that may read and write there",
    "file": "create the folder, and make it writable for this user",
}
"""Hint by URL scheme. A machine may have a role instead of credentials."""
METADATA_SERVER = "169.254.169.254"
"""Address that clients ask for a machine's role if no credentials are set."""
AT_ONCE = 8
SCAN_INTERVAL_S, LONGEST_INTERVAL_S = 2.0, 60.0
RETRY_TIMEOUT_S, REQUEST_TIMEOUT_S = 15.0, 120.0
END_WAIT_S, INTERRUPTED_WAIT_S = 60.0, 10.0
"""Maximum wait for the last files at the end of a run."""


class Stored(NamedTuple):
    """A file in the mirror: its size, and its upload time in seconds since 1970."""

    size: int
    copied_s: float


class Mirror:
    """A prefix of an object store with a folder per run."""

    def __init__(self, url: str) -> None:
        """Open the store. Raises SpecError if the URL is not valid or obstore is not installed."""
        self.url = url.rstrip("/")
        scheme, _, rest = self.url.partition("://")
        if scheme not in CREDENTIALS or not rest or any(sign in rest for sign in "@?#"):
            raise SpecError(
                f"ASSAYLINE_MIRROR_URL {hide_secrets(url)!r} is not a valid object store URL. hint: use "
                "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER, and set credentials "
                "through environment variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            )
        self._hint = CREDENTIALS[scheme]
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise SpecError(
                f"ASSAYLINE_MIRROR_URL is {self.url}, and obstore is not installed. hint: pip install "
                "'assayline[obstore]', or unset the variable."
            ) from None
        self._api: Any = obstore
        self._errors: tuple[type[Exception], ...] = (BaseError, FileNotFoundError)
        timeouts = {"timeout": timedelta(seconds=REQUEST_TIMEOUT_S), "connect_timeout": timedelta(seconds=5)}
        try:
            self._store: Any = from_url(
                self.url,
                client_options={**timeouts, "allow_http": True},
                retry_config={"max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
            )
        except BaseError as error:
            raise SpecError(f"ASSAYLINE_MIRROR_URL, {self.url}: {_read(error)}. hint: {self._hint}.") from None

    def list_runs(self) -> list[str]:
        """List the ids of the runs in the mirror, newest first. Raises StoreError."""
        found = self._ask(lambda: self._api.list_with_delimiter(self._store))
        return sorted((str(prefix).rpartition("/")[2] for prefix in found["common_prefixes"]), reverse=True)

    def list_files(self, run_id: str) -> dict[str, Stored]:
        """List the files of a run by their paths in its folder. Raises StoreError."""
        found = self._ask(lambda: self._api.list(self._store, prefix=run_id).collect())
        return {
            str(one["path"]).removeprefix(f"{run_id}/"): Stored(int(one["size"]), one["last_modified"].timestamp())
            for one in found
        }

    async def put(self, key: str, content: bytes) -> None:
        """Create or replace an object."""
        await self._api.put_async(self._store, key, content, use_multipart=False)

    async def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return bytes(await (await self._api.get_async(self._store, key)).bytes_async())

    def for_each(self, do: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
        """Await `do` for each name, up to AT_ONCE at a time, until the first error. Raises StoreError."""

        async def do_all() -> None:
            left = list(names)
            for start in range(0, len(left), AT_ONCE):
                await asyncio.gather(*map(do, left[start : start + AT_ONCE]))

        self._ask(lambda: asyncio.run(do_all()))

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Call the store. Raises StoreError with its message and a hint."""
        try:
            return call()
        except self._errors as error:
            said, hint = _read(error), self._hint
            if METADATA_SERVER in said:
                said += "; no credentials are set, so the client asked for this machine's role"
            elif isinstance(error, FileNotFoundError):
                hint = "create the bucket, or correct ASSAYLINE_MIRROR_URL"
            elif type(error).__name__ == "GenericError":
                hint = "check that the store is up, and that this machine can reach it"
            raise StoreError(f"The mirror {self.url} cannot be used: {said}. hint: {hint}.") from None


class RunCopy:
    """One run in the mirror, with a record in its folder of the copied version of each file."""

    def __init__(self, mirror: Mirror, run_dir: Path) -> None:
        self.mirror, self.run_dir, self.run_id = mirror, run_dir, run_dir.name
        self._copied: dict[str, Stamp] = {}
        with contextlib.suppress(OSError):  # without a record, everything is copied again
            for line in (run_dir / RECORD_NAME).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # a killed process may leave half a line
                    url, name, stamp = json.loads(line)
                    if url == mirror.url:
                        self._copied[name] = stamp

    def list_left(self) -> dict[str, Stamp]:
        """Return files whose current version is not in the mirror; none until the first request is rendered."""
        with contextlib.suppress(FileNotFoundError):
            if json.loads((self.run_dir / MANIFEST_NAME).read_bytes())["template_id"] is not None:
                return dict(self._find_left())
        return {}

    def update(self) -> None:
        """Copy the missing files, the manifest last, as it was before the parts were listed. Raises StoreError."""
        manifest = self.run_dir / MANIFEST_NAME
        with storing(f"Run {self.run_id} cannot be read for its mirror", MAKE_ROOM):
            stamp, content = _stamp(manifest), manifest.read_bytes()
            left = self.list_left()

            async def put(name: str) -> None:
                try:
                    found = content if name == MANIFEST_NAME else (self.run_dir / name).read_bytes()
                except FileNotFoundError:  # renamed meanwhile
                    return
                await self.mirror.put(f"{self.run_id}/{name}", found)
                self._keep(name, stamp if name == MANIFEST_NAME else left[name])

            self.mirror.for_each(put, left.keys() - {MANIFEST_NAME})
            self.mirror.for_each(put, left.keys() & {MANIFEST_NAME})

    def fetch(self, names: Iterable[str]) -> None:
        """Download files, the manifest last. Raises StoreError."""

        async def get(name: str) -> None:
            write_bytes(self.run_dir / name, await self.mirror.get(f"{self.run_id}/{name}"), MAKE_ROOM)
            self._keep(name, _stamp(self.run_dir / name))

        wanted = set(names)
        self.mirror.for_each(get, wanted - {MANIFEST_NAME})
        self.mirror.for_each(get, wanted & {MANIFEST_NAME})

    def _find_left(self) -> Iterator[tuple[str, Stamp]]:
        for name in self._walk():
            if name in self._copied and name.startswith(UNCHANGING):
                continue
            with contextlib.suppress(FileNotFoundError):
                stamp = _stamp(self.run_dir / name)
                if stamp != self._copied.get(name):
                    yield name, stamp

    def _walk(self) -> Iterator[str]:
        """Yield the names of finished files, relative to the run's folder."""
        yield MANIFEST_NAME
        for top in ("", *FOLDERS):
            for folder, folders, names in os.walk(self.run_dir / top):
                if not top:
                    folders.clear()
                for name in names:
                    if not name.startswith(".") and (top != PARTS or name.endswith(".parquet")):
                        path = os.path.relpath(f"{folder}/{name}", self.run_dir)
                        if path not in NOT_COPIED:
                            yield path

    def _keep(self, name: str, stamp: Stamp) -> None:
        self._copied[name] = stamp
        with contextlib.suppress(OSError), open(self.run_dir / RECORD_NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.mirror.url, name, stamp]) + "\n")


class _Copier:
    """The thread that copies a run. Errors of the mirror never fail a run."""

    def __init__(self, copy: RunCopy, log: AnyLogger) -> None:
        self._copy, self._log = copy, log
        self._is_over = threading.Event()
        self._trouble: str | None = None
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> None:
        self._is_over.set()
        self._thread.join(wait_s)
        run_id, url = self._copy.run_id, self._copy.mirror.url
        if self._thread.is_alive() or self._trouble:
            left = count(len(self._copy.list_left()), "file")
            why = self._trouble or f"Copying did not finish within {wait_s:g} s after the end of the run."
            self._log.warning(
                f"Mirror incomplete: {left} of run {run_id} missing. {why} hint: run `assayline mirror {run_id}`."
            )
        else:
            self._log.info(f"Copied run {run_id} to {url}/{run_id}")

    def _run(self) -> None:
        wait_s = SCAN_INTERVAL_S
        while not self._is_over.wait(wait_s):
            self._try()
            wait_s = min(2 * wait_s, LONGEST_INTERVAL_S) if self._trouble else SCAN_INTERVAL_S
        self._try()

    def _try(self) -> None:
        try:
            self._copy.update()
            self._trouble = None
        except Exception as error:
            self._trouble = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            if not self._has_warned and not self._is_over.is_set():
                self._log.warning(f"{self._trouble} The run continues; copying resumes when the mirror is back.")
                self._has_warned = True


def open_mirror(settings: Settings) -> Mirror | None:
    """Open the mirror in the settings; None without one. Raises SpecError."""
    return Mirror(settings.mirror_url) if settings.mirror_url else None


@contextlib.contextmanager
def mirroring(mirror: Mirror | None, run_dir: Path, log: AnyLogger) -> Iterator[None]:
    """Copy a run during the block, wait a bounded time for the last files, and log missing ones."""
    copier = _Copier(RunCopy(mirror, run_dir), log) if mirror else None
    wait_s = INTERRUPTED_WAIT_S
    try:
        yield
        wait_s = END_WAIT_S
    except Exception:
        wait_s = END_WAIT_S
        raise
    finally:
        if copier is not None:
            copier.close(wait_s)


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _read(error: Exception) -> str:
    """Return the store's message on one line, without secrets and client internals."""
    said = hide_secrets(" ".join(str(error).partition("\n\nDebug source")[0].split()))
    return said[:400].rstrip(".")
