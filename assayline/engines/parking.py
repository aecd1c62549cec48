"""Keep an engine open between runs that need the same one, so that they load the model once.

    with park_engines():
        ...  # runs of one worker each, one after another, in threads of this process

A healthy engine that is closed within the block is parked: its host stays alive and idle, and its device stays claimed,
visible to other processes. The next engine takes the host over if its order is equal (`HostedEngine`); otherwise, and
at the end of the block, the host is ended. A lot has one device and one engine at a time.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.clock import RunClock
from assayline.engines.devices.claims import Device, claim_device
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.messages import Open
from assayline.engines.process import HostProcess

NO_CLOCK = RunClock(0.0, 0.0, "")


@dataclass(frozen=True, slots=True)
class Parked:
    """A host that waits for the next run."""

    host: HostProcess
    order: Open
    """The order that it was opened or last taken over with."""
    env: Mapping[str, str]
    """Its environment, as returned by `own_variables`."""
    run_id: str
    """The run that it was loaded for; its log is in that run's folder."""
    close_timeout_s: float


class ParkingLot:
    """Room for one device, and one host on it."""

    def __init__(self) -> None:
        self._parked: Parked | None = None
        self._device: Device | None = None
        self._claim = contextlib.ExitStack()
        self._first_run: str | None = None
        self.memory = DeviceMemory(())
        """The device's memory as it was without a parked engine."""

    def claim(
        self,
        devices: list[Device],
        lock_dir: Path,
        wait_s: float,
        holder: str = "",
        on_wait: Callable[[str], object] = str,
    ) -> Device:
        """Return the device held here if it is one of `devices`; else claim and hold the first free one."""
        names = [(device.name, device.units) for device in devices]
        is_held = self._device is not None and (self._device.name, self._device.units) in names
        if not is_held:
            self.clear()
            self._device = self._claim.enter_context(claim_device(devices, lock_dir, wait_s, holder, on_wait))
        assert self._device is not None
        if self._parked is None:
            self.memory = DeviceMemory(self._device.gpus)
        return replace(self._device, orphans=()) if is_held else self._device

    def park(self, parked: Parked) -> None:
        """Keep the host for the next run."""
        parked.host.listen(lambda line: None)
        self._parked = parked

    def take(self, order: Open, env: Mapping[str, str]) -> Parked | None:
        """Return the parked host if it is alive and its order is equal; else end it, to make room."""
        parked, self._parked = self._parked, None
        if parked is None:
            return None
        if parked.host.exit_code is None and (_of_no_run(parked.order), parked.env) == (_of_no_run(order), env):
            return parked
        parked.host.end(parked.close_timeout_s)
        return None

    def keep_run(self, run_id: str) -> str | None:
        """Return the run that first used the lot's fake engine, which has no process; None for the first itself."""
        first, self._first_run = self._first_run, self._first_run or run_id
        return None if first == run_id else first

    def clear(self) -> None:
        """End the parked host and release the device."""
        parked, self._parked, self._device = self._parked, None, None
        try:
            if parked is not None:
                parked.host.end(parked.close_timeout_s)
        finally:
            self._claim.close()


def own_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return an engine's variables that differ from this process's, which libraries change during a run."""
    return {name: value for name, value in env.items() if os.environ.get(name) != value}


def _of_no_run(order: Open) -> Open:
    """Return an order without its run, worker, clock and sampling, which each request has, to compare engines."""
    return replace(order, clock=NO_CLOCK, run_id="", worker="", engine_generation=0, sampling={})


_lot: ParkingLot | None = None


@contextlib.contextmanager
def park_engines() -> Iterator[ParkingLot]:
    """Park this process's engines when they are closed within the block, and end them after it."""
    global _lot
    assert _lot is None, "engines are parked here already"
    lot = _lot = ParkingLot()
    try:
        yield lot
    finally:
        _lot = None
        lot.clear()


@contextlib.contextmanager
def without_lot(*, needs_device: bool) -> Iterator[None]:
    """Let runs within the block open engines of their own. If one needs a device, the lot gives its device back."""
    global _lot
    lot, _lot = _lot, None
    try:
        if lot is not None and needs_device:
            lot.clear()
        yield
    finally:
        _lot = lot


def find_lot(workers: int = 1) -> ParkingLot | None:
    """Return the lot for the engine of this process's only worker; None without a lot, and for several workers."""
    return _lot if workers == 1 else None
