"""The queue between preparing and generating: a folder of request parts that workers claim one by one.

A shard is a part file of the `requests` table. A worker claims it by creating a file that must not exist yet, which is
atomic on every local and network file system, so any number of workers, in threads, processes or on other machines,
share a queue without a server, and a fast worker takes more shards than a slow one.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from assayline.records import Request
from assayline.store.parts import list_parts
from assayline.store.tables import request_from_row

RESCAN_INTERVAL_S = 0.05


class ShardQueue:
    """One run's shards. `pull` is for workers, `close` for whoever writes the last shard, `stop` for everybody."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._claims = run_dir / "claims"
        self._closed = run_dir / "queue-closed"
        self._stop = run_dir / "stop"
        self._pending: list[Path] = []
        self._seen: set[str] = set()
        self._scanned_s = float("-inf")

    def reset(self) -> None:
        """Makes every shard claimable and the queue open again: at the start of a run."""
        self._claims.mkdir(parents=True, exist_ok=True)
        for path in [self._closed, self._stop, *self._claims.iterdir()]:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """No shard will follow."""
        self._closed.touch()

    def stop(self) -> None:
        """Asks every worker to stop generating now."""
        with contextlib.suppress(OSError):
            self._stop.touch()

    def is_stopped(self) -> bool:
        """Whether somebody asked to stop."""
        return self._stop.exists()

    def claim(self) -> Path | None:
        """A shard that nobody else will get, or None if there is none at the moment."""
        self._rescan()
        while self._pending:
            shard = self._pending.pop(0)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._claims / shard.stem, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return shard
        return None

    def pull(self) -> Iterator[Request | None]:
        """Requests of every shard that can be claimed, until the queue is closed and empty; None: nothing now."""
        while True:
            closed = self._closed.exists()  # asked before claiming: the last shard is there before the mark is
            if closed:
                self._scanned_s = float("-inf")  # and may have come since the last look
            shard = self.claim()
            if shard is not None:
                yield from read_shard(shard)
            elif closed:
                return
            else:
                yield None

    def _rescan(self) -> None:
        if self._pending or time.monotonic() - self._scanned_s < RESCAN_INTERVAL_S:
            return
        self._pending = [part for part in list_parts(self._run_dir, "requests") if part.name not in self._seen]
        self._seen.update(part.name for part in self._pending)
        self._scanned_s = time.monotonic()


def read_shard(path: Path) -> Iterator[Request]:
    """The shard's requests that can be generated; those whose rendering failed have their error row already."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                if row["prompt_token_ids"]:
                    yield request_from_row(row)
