"""One monotonic clock per run: seconds since the run's start, shared by all processes of the run.

On the machine that started the run, all processes share the system's monotonic clock, and so do vLLM's own timestamps.
On another machine, opening the clock maps the run's wall-clock start to that machine's monotonic clock once. The
mapping is as accurate as the two wall clocks agree; differences between timestamps of one machine stay exact.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

UNKNOWN = "unknown"
"""The boot id of a kernel that does not expose one."""


@dataclass(frozen=True, slots=True)
class RunClock:
    """The start of a run. Picklable; call `on_this_machine` on the machine that uses it."""

    started_wall_s: float
    """Unix time of the run's start."""
    started_monotonic_s: float
    """`time.monotonic()` of the run's start on the machine `boot_id`."""
    boot_id: str

    @classmethod
    def start(cls) -> "RunClock":
        """Return a clock that starts now."""
        return cls(time.time(), time.monotonic(), boot_id())

    def on_this_machine(self) -> "RunClock":
        """Return the same clock, relative to this machine's monotonic clock."""
        here = boot_id()
        if here == self.boot_id:
            return self
        return RunClock(self.started_wall_s, time.monotonic() - (time.time() - self.started_wall_s), here)

    def now_s(self) -> float:
        """Return the seconds since the run's start."""
        return self.at_s(time.monotonic())

    def at_s(self, monotonic_s: float) -> float:
        """Convert a `time.monotonic()` timestamp of this machine to seconds since the run's start, rounded to 1 µs."""
        return round(monotonic_s - self.started_monotonic_s, 6)


def boot_id() -> str:
    """Return the kernel's boot id: processes with the same id share locks and the monotonic clock."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else UNKNOWN


def utc_now() -> str:
    """Return the current UTC time in the format of `finished_at`."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat()
