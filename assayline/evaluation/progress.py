"""How far a run is, from its part files alone: answers, errors, tokens, windows. For display while a run is under way.

Each part is read once, and of it three columns. What a run was is in the database's models, not here.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.records import NOT_SENT
from assayline.store.parts import ANSWERS, SHOWN_AGE_S, fetch_parts, list_part_names

RATE_OVER_S = 15.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands."""

    answered: int
    errors: int
    window_requests: int | None
    """The most requests in flight, of all workers that answered so far, as of their newest answers; None in an open
    loop."""
    output_tokens_per_s: float | None
    """Over the last `RATE_OVER_S` seconds, as parts came in; None before the first."""


class Tally:
    """Counts a run's answers as their parts appear. What is there when it is made counts, but not as speed."""

    def __init__(self, run_dir: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._now = now
        self._seen: set[str] = set()
        self._answered = self._errors = self._tokens = 0
        self._windows: dict[str, int] = {}
        with contextlib.suppress(OSError, StoreError, pa.ArrowException):  # the first count tries again
            self._read_new()
        self._marks = deque([(now(), self._tokens)])

    def count(self) -> Standing:
        """Reads what is new."""
        self._read_new()
        now = self._now()
        if self._tokens == self._marks[0][1] and len(self._marks) == 1:
            self._marks[0] = (now, self._tokens)  # nothing came yet: the clock of the speed has not begun
        else:
            self._marks.append((now, self._tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_OVER_S:
            self._marks.popleft()
        since_s, tokens = self._marks[0]
        rate = (self._tokens - tokens) / (now - since_s) if len(self._marks) > 1 and now > since_s else None
        return Standing(self._answered, self._errors, sum(self._windows.values()) or None, rate)

    def _read_new(self) -> None:
        names = list_part_names(self._run_dir, ANSWERS, max_age_s=SHOWN_AGE_S)
        for part in fetch_parts(self._run_dir, ANSWERS, [name for name in names if name not in self._seen]):
            self._read(part)
            self._seen.add(part.name)

    def _read(self, part: Path) -> None:
        table = pq.read_table(part, columns=["worker", "window_requests", "output_tokens", "error_kind"])
        self._answered += table.num_rows
        kinds = table["error_kind"].to_pylist()
        self._errors += sum(kind not in (None, NOT_SENT) for kind in kinds)
        self._tokens += sum(filter(None, table["output_tokens"].to_pylist()))
        windows = dict(zip(table["worker"].to_pylist(), table["window_requests"].to_pylist(), strict=True))
        self._windows.update({worker: window for worker, window in windows.items() if worker != "prepare" and window})
