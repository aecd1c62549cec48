"""The mirror: a copy of each run in an object store, for a machine that is lost for good.

`ASSAYLINE_MIRROR_URL` names it. A thread of the flow's process looks for new and changed files in the run's folder and
puts each as one object, `URL/RUN_ID/PATH`; no writer knows of it. Nothing is read back except by `assayline restore`.
`mirrored.jsonl` in the run's folder lists the files that are copied, so that a later attempt copies only the others.
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
from assayline.media.shelf import SHELF_NAME
from assayline.runs.locks import FLOW_LOCK
from assayline.runs.manifest import MANIFEST_NAME
from assayline.settings import Settings
from assayline.store.parts import PARTS
from assayline.store.scoring import FOLDER_NAME as JUDGED
from assayline.words import count, hide_secrets

AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]
Stamp = list[int]
"""Version of a file: its size and its time of change."""

RECORD_NAME = "mirrored.jsonl"
NOT_COPIED = {MANIFEST_NAME, RECORD_NAME, FLOW_LOCK}
"""Files at the top of a run's folder; the manifest is copied after all others."""
FOLDERS = (PARTS, SHELF_NAME, JUDGED)
UNCHANGING = (f"{PARTS}/", f"{SHELF_NAME}/")
"""A file below these never changes once it has its name."""
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION to credentials that may read and write there",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the path of a key file that may read and write there",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY to credentials that may read and write there",
    "file": "make the folder, and let this user write in it",
}
"""What to do, by scheme. Machines may have a role instead."""
METADATA_SERVER = "169.254.169.254"
"""Asked for a machine's role when no credentials are set."""
AT_ONCE = 8
SCAN_INTERVAL_S, LONGEST_INTERVAL_S = 2.0, 60.0
RETRY_TIMEOUT_S, REQUEST_TIMEOUT_S = 15.0, 120.0
END_WAIT_S, INTERRUPTED_WAIT_S = 60.0, 10.0
"""How long the end of a run waits for files that are not copied yet."""


class Stored(NamedTuple):
    """A file in the mirror: its size, and when it was copied, in seconds since 1970."""

    size: int
    copied_s: float


class Mirror:
    """A prefix of an object store, below which each run has a folder."""

    def __init__(self, url: str) -> None:
        """Raises SpecError if the URL is not usable or obstore is not installed."""
        self.url = url.rstrip("/")
        scheme, _, rest = self.url.partition("://")
        if scheme not in CREDENTIALS or not rest or any(sign in rest for sign in "@?#"):
            raise SpecError(
                f"Setting ASSAYLINE_MIRROR_URL was given {hide_secrets(url)!r}. Expected s3://BUCKET/PREFIX, "
                "gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER, without credentials. hint: credentials "
                "belong into the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
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
        """Ids of the runs in the mirror, the newest first. Raises StoreError."""
        found = self._ask(lambda: self._api.list_with_delimiter(self._store))
        return sorted((str(prefix).rpartition("/")[2] for prefix in found["common_prefixes"]), reverse=True)

    def list_files(self, run_id: str) -> dict[str, Stored]:
        """The files of a run, by their paths in its folder. Raises StoreError."""
        found = self._ask(lambda: self._api.list(self._store, prefix=run_id).collect())
        return {
            str(one["path"]).removeprefix(f"{run_id}/"): Stored(int(one["size"]), one["last_modified"].timestamp())
            for one in found
        }

    async def put(self, key: str, content: bytes) -> None:
        """Makes or replaces an object."""
        await self._api.put_async(self._store, key, content, use_multipart=False)

    async def get(self, key: str) -> bytes:
        """Returns the content of an object."""
        return bytes(await (await self._api.get_async(self._store, key)).bytes_async())

    def for_each(self, do: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
        """Does something with each name, some at the same time. The first error ends it. Raises StoreError."""

        async def do_all() -> None:
            left = list(names)
            for start in range(0, len(left), AT_ONCE):
                await asyncio.gather(*map(do, left[start : start + AT_ONCE]))

        self._ask(lambda: asyncio.run(do_all()))

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Calls the store. Raises StoreError with its answer and a hint."""
        try:
            return call()
        except self._errors as error:
            said, hint = _read(error), self._hint
            if METADATA_SERVER in said:
                said += "; no credentials are set, so it was asked for this machine's role"
            elif isinstance(error, FileNotFoundError):
                hint = "make the bucket, or correct ASSAYLINE_MIRROR_URL"
            elif type(error).__name__ == "GenericError":
                hint = "check that the store is up, and that this machine can reach it"
            raise StoreError(f"The mirror {self.url} cannot be used: {said}. hint: {hint}.") from None


class RunCopy:
    """One run in the mirror. The record in its folder keeps which version of which file is there."""

    def __init__(self, mirror: Mirror, run_dir: Path) -> None:
        self.mirror, self.run_dir, self.run_id = mirror, run_dir, run_dir.name
        self._copied: dict[str, Stamp] = {}
        with contextlib.suppress(OSError):  # without a record everything is copied again
            for line in (run_dir / RECORD_NAME).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # a killed process left half a line
                    url, name, stamp = json.loads(line)
                    if url == mirror.url:
                        self._copied[name] = stamp

    def list_left(self) -> dict[str, Stamp]:
        """Files whose current version is not in the mirror; none until the run's first request is rendered."""
        with contextlib.suppress(FileNotFoundError):
            if json.loads((self.run_dir / MANIFEST_NAME).read_bytes())["template_id"] is not None:
                return dict(self._find_left())
        return {}

    def update(self) -> None:
        """Copies what is left: the manifest last, as it was before the parts were listed. Raises StoreError."""
        manifest = self.run_dir / MANIFEST_NAME
        with storing(f"Run {self.run_id} cannot be read for its mirror", f"hint: {MAKE_ROOM}"):
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
        """Downloads files, the manifest last. Raises StoreError."""

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
        """Names of finished files, relative to the run's folder."""
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
    """The thread that copies a run. No trouble of the mirror is worth a run."""

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
            why = self._trouble or f"It had {wait_s:g} s for them after the run's end."
            self._log.warning(
                f"The mirror lacks {left} of run {run_id}. hint: `assayline mirror {run_id}` copies them. {why}"
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
                self._log.warning(f"{self._trouble} The run continues, and files are copied when the mirror is back.")
                self._has_warned = True


def open_mirror(settings: Settings) -> Mirror | None:
    """The mirror that the settings name; None without one. Raises SpecError."""
    return Mirror(settings.mirror_url) if settings.mirror_url else None


@contextlib.contextmanager
def mirroring(mirror: Mirror | None, run_dir: Path, log: AnyLogger) -> Iterator[None]:
    """Copies a run meanwhile, and waits at its end for the last files, a bounded time. Logs what is not copied."""
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
    """The store's answer on one line, without secrets and the client's internals."""
    said = hide_secrets(" ".join(str(error).partition("\n\nDebug source")[0].split()))
    return said[:400].rstrip(".")
