"""How often a run's folder is looked at: a network file system, shared by hundreds of workers, answers slowly."""

import time
from collections.abc import Callable

STOP_CHECK_INTERVAL_S = 0.25
STOP_CHECKS_PER_S = 200
"""Of all workers of a run together."""
RESCAN_INTERVAL_S = 0.05
RESCAN_SHARE = 0.05
"""Of the time at the most goes into looking for new shards, however many there are already."""


class Throttle:
    """How often a folder is listed: not more often than RESCAN_INTERVAL_S, and for RESCAN_SHARE of the time."""

    interval_s = RESCAN_INTERVAL_S
    """To be made longer where others look, too."""

    def __init__(self) -> None:
        self._ended_s = self._began_s = float("-inf")
        self._cost_s = 0.0

    def is_due(self) -> bool:
        return time.monotonic() - self._ended_s >= max(self.interval_s, self._cost_s / RESCAN_SHARE)

    def forget(self) -> None:
        """The next look is due at once."""
        self._ended_s = float("-inf")

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._ended_s = time.monotonic()
        self._cost_s = self._ended_s - self._began_s


def throttle(check: Callable[[], bool], askers: int = 1) -> Callable[[], bool]:
    """Asks at most every STOP_CHECK_INTERVAL_S, and for RESCAN_SHARE of the time: a store's answer takes a while.

    Hundreds of `askers`, who ask the same, ask less often.
    """
    due_s = float("-inf")
    interval_s = max(STOP_CHECK_INTERVAL_S, askers / STOP_CHECKS_PER_S)

    def throttled() -> bool:
        nonlocal due_s
        asked_s = time.monotonic()
        if asked_s < due_s:
            return False
        found = check()
        answered_s = time.monotonic()
        due_s = answered_s + max(interval_s, (answered_s - asked_s) / RESCAN_SHARE)
        return found

    return throttled
