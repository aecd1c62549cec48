"""The queue between preparing and generating: a folder of request parts that workers claim one by one.

A shard is a part file of the `requests` table. A worker claims it by creating a file that must not exist yet, which is
atomic on every local and network file system, so any number of workers, in threads, processes or on other machines,
share a queue without a server, and a fast worker takes more shards than a slow one. Of the shards that are there it
takes the one with the longest answers, where their names tell how long they are expected to be.

A run that is resumed begins with its answered shards claimed, and with a list of answered requests beside those that
were left in the middle.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.media.shelf import find_media
from assayline.records import Request
from assayline.store.parts import list_part_names, part_unreadable, parts_dir
from assayline.store.tables import request_from_row

RESCAN_INTERVAL_S = 0.05
RESCAN_SHARE = 0.05
"""Of the time at the most goes into looking for new shards, however many there are already."""


class ShardQueue:
    """One run's shards. `pull` is for workers, `close` for whoever writes the last shard, `stop` for everybody."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._claims = run_dir / "claims"
        self._answered = run_dir / "answered"
        self._closed = run_dir / "queue-closed"
        self._go = run_dir / "go"
        self._stop = run_dir / "stop"
        self._pending: list[Path] = []
        self._seen: set[str] = set()
        self._scanned_s = float("-inf")
        self._scan_cost_s = 0.0

    def reset(self) -> None:
        """Makes every shard claimable and the queue open again: at the start of a run. Raises StoreError."""
        with _explained(self._run_dir):
            for folder in (self._claims, self._answered):
                if folder.exists():
                    shutil.rmtree(folder)
                folder.mkdir(parents=True)
            for path in (self._closed, self._stop):
                path.unlink(missing_ok=True)
            self._go.touch()

    def close(self) -> None:
        """No shard will follow. Raises StoreError."""
        with _explained(self._run_dir):
            self._closed.touch()

    def stop(self) -> None:
        """Asks every worker to stop generating now. Needs no space: a full disk is a reason to stop."""
        with contextlib.suppress(OSError):
            self._go.replace(self._stop)
            return
        with contextlib.suppress(OSError):
            self._stop.touch()

    def mark_answered(self, shard: str) -> None:
        """Nothing of this shard is to be asked. Raises StoreError."""
        with _explained(self._run_dir):
            (self._claims / shard).touch()

    def mark_partly_answered(self, shard: str, request_ids: Iterable[str]) -> None:
        """These requests of the shard are not to be asked. To be said before it can be claimed. Raises StoreError."""
        with _explained(self._run_dir), open(self._answered / shard, "w", encoding="utf-8") as file:
            file.writelines(f"{request_id}\n" for request_id in request_ids)

    def is_stopped(self) -> bool:
        """Whether somebody asked to stop."""
        return self._stop.exists()

    def claim(self) -> Path | None:
        """A shard that nobody else will get, the one with the longest answers; None if there is none at the moment.

        Raises StoreError.
        """
        self._rescan()
        while self._pending:
            shard = self._pending.pop(0)
            with _explained(self._run_dir), contextlib.suppress(FileExistsError):
                os.close(os.open(self._claims / shard.stem, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return shard
        return None

    def pull(self) -> Iterator[Request | None]:
        """Requests of every shard that can be claimed, until the queue is closed and empty; None: nothing now."""
        while True:
            closed = self._closed.exists()  # asked before claiming: the last shard is there before the mark is
            shard = self.claim()
            if shard is None and closed:
                self._scanned_s = float("-inf")  # the last shard may have come since the last look
                shard = self.claim()
            if shard is not None:
                yield from read_shard(shard, self._read_answered(shard.stem))
            elif closed:
                return
            else:
                yield None

    def _rescan(self) -> None:
        started_s = time.monotonic()
        if started_s - self._scanned_s < max(RESCAN_INTERVAL_S, self._scan_cost_s / RESCAN_SHARE):
            return
        folder = parts_dir(self._run_dir, "requests")
        new = [name for name in list_part_names(self._run_dir, "requests") if name not in self._seen]
        self._pending = sorted([*self._pending, *(folder / name for name in new)], key=_longest_first)
        self._seen.update(new)
        self._scanned_s = time.monotonic()
        self._scan_cost_s = self._scanned_s - started_s

    def _read_answered(self, shard: str) -> frozenset[str]:
        with _explained(self._run_dir), contextlib.suppress(FileNotFoundError):
            return frozenset((self._answered / shard).read_text(encoding="utf-8").splitlines())
        return frozenset()


def name_shard(number: int, longest_tokens: int | None = None) -> str:
    """A shard's name; with the length of its longest answer, as far as that is expected, where shards have an order."""
    return f"shard-{number:06d}" + ("" if longest_tokens is None else f"-{longest_tokens:07d}")


def _longest_first(shard: Path) -> tuple[int, str]:
    _, _, longest_tokens = shard.stem.partition("-")[2].partition("-")
    return -int(longest_tokens or 0), shard.name


def read_shard(path: Path, answered: frozenset[str] = frozenset()) -> Iterator[Request]:
    """The shard's requests that are to be generated: not answered before, nor by an error row when it was prepared.

    Raises StoreError for a damaged part.
    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    is_ready = row["prompt_token_ids"] or row["messages_json"]
                    if is_ready and row["request_id"] not in answered:
                        yield _find_media(request_from_row(row), path.parents[2])
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(path, error) from error


@contextlib.contextmanager
def _explained(run_dir: Path) -> Iterator[None]:
    """An error of the file system becomes a sentence."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The run's folder {run_dir} cannot be read or written: {error}. The data folder (ASSAYLINE_DATA_DIR) must "
            "be writable and have space. What was stored so far is kept: the same command resumes the run."
        ) from error


def _find_media(request: Request, run_dir: Path) -> Request:
    if request.media is None:
        return request
    return replace(request, media=[find_media(media, run_dir) for media in request.media])
