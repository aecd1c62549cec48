"""Parking: between runs that want the same engine it stays open, so that they load the model once.

    with park_engines():
        ...  # runs of one worker each, one after another, in threads of this process

An engine that is closed meanwhile, and is well, is parked: its host lives on with nothing to do, and its device stays
claimed, for other processes to see. The next engine that is opened takes the host over if it is ordered alike
(`HostedEngine`); if not, and at the end of the block, the host is ended first. There is one device and one engine at a
time, and it is never parked twice.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.clock import RunClock
from assayline.engines.devices.claims import Device, claim_device
from assayline.engines.messages import Open
from assayline.engines.process import HostProcess

NO_CLOCK = RunClock(0.0, 0.0, "")


@dataclass(frozen=True, slots=True)
class Parked:
    """A host that waits for the next run."""

    host: HostProcess
    order: Open
    """What it was opened with, or taken over with last."""
    env: Mapping[str, str]
    """What `own_variables` said of its environment."""
    run_id: str
    """The run that it was loaded for, in whose folder its log is."""
    close_timeout_s: float


class ParkingLot:
    """Room for one device, and one host on it."""

    def __init__(self) -> None:
        self._parked: Parked | None = None
        self._device: Device | None = None
        self._claim = contextlib.ExitStack()

    def claim(
        self,
        devices: list[Device],
        lock_dir: Path,
        wait_s: float,
        holder: str = "",
        on_wait: Callable[[str], object] = str,
    ) -> Device:
        """Return the device that is held here, if it is one of these; else the first free one of them, held from now
        on."""
        names = [(device.name, device.units) for device in devices]
        if self._device is not None and (self._device.name, self._device.units) in names:
            return replace(self._device, orphans=())
        self.clear()
        self._device = self._claim.enter_context(claim_device(devices, lock_dir, wait_s, holder, on_wait))
        return self._device

    def park(self, parked: Parked) -> None:
        """Keep the host for whoever is next."""
        parked.host.listen(lambda line: None)
        self._parked = parked

    def take(self, order: Open, env: Mapping[str, str]) -> Parked | None:
        """Return the parked host, if it is alive and was ordered alike. One that is not is ended, to make room."""
        parked, self._parked = self._parked, None
        if parked is None:
            return None
        if parked.host.exit_code is None and (_of_no_run(parked.order), parked.env) == (_of_no_run(order), env):
            return parked
        parked.host.end(parked.close_timeout_s)
        return None

    def clear(self) -> None:
        """End the parked host and gives the device back."""
        parked, self._parked, self._device = self._parked, None, None
        try:
            if parked is not None:
                parked.host.end(parked.close_timeout_s)
        finally:
            self._claim.close()


def own_variables(env: Mapping[str, str]) -> dict[str, str]:
    """What an engine's environment has beyond this process's: libraries change that one during a run."""
    return {name: value for name, value in env.items() if os.environ.get(name) != value}


def _of_no_run(order: Open) -> Open:
    """What makes two engines alike: all of an order but whose turn it is."""
    return replace(order, clock=NO_CLOCK, run_id="", worker="", engine_generation=0)


_lot: ParkingLot | None = None


@contextlib.contextmanager
def park_engines() -> Iterator[ParkingLot]:
    """Meanwhile, engines of this process are parked when they are closed. However it ends, none is left."""
    global _lot
    assert _lot is None, "engines are parked here already"
    lot = _lot = ParkingLot()
    try:
        yield lot
    finally:
        _lot = None
        lot.clear()


def find_lot() -> ParkingLot | None:
    """Where engines of this process are parked, if they are. Workers ask, and hand it to whom it concerns."""
    return _lot
