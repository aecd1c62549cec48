"""One clock per run: seconds since the run's start, monotonic, shared by every process that works for the run.

On the machine that started the run, the system's monotonic clock is the same for all processes, and so for vLLM's own
stamps. On another machine it is not, so there the run's wall-clock start is mapped once, when the clock is opened:
the map is as good as the two machines' wall clocks agree, and differences between stamps of one machine stay exact.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

UNKNOWN = "unknown"
"""A kernel that does not say which it is."""


@dataclass(frozen=True, slots=True)
class RunClock:
    """The zero of a run. Picklable: opened on the machine where it is used by `on_this_machine`."""

    started_wall_s: float
    """Unix time of the run's start."""
    started_monotonic_s: float
    """`time.monotonic()` of the run's start on the machine `boot_id`."""
    boot_id: str

    @classmethod
    def start(cls) -> "RunClock":
        """A clock that reads 0 now."""
        return cls(time.time(), time.monotonic(), boot_id())

    def on_this_machine(self) -> "RunClock":
        """The same clock, with the monotonic zero of the machine that asks."""
        here = boot_id()
        if here == self.boot_id:
            return self
        return RunClock(self.started_wall_s, time.monotonic() - (time.time() - self.started_wall_s), here)

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return self.at_s(time.monotonic())

    def at_s(self, monotonic_s: float) -> float:
        """A `time.monotonic()` stamp of this machine as seconds since the run's start, rounded to 1 µs."""
        return round(monotonic_s - self.started_monotonic_s, 6)


def boot_id() -> str:
    """Which kernel this is, since when: whose locks and monotonic clock are the same for all its processes."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else UNKNOWN


def utc_now() -> str:
    """Now, as `finished_at` has it."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat()
