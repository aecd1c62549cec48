"""Keep an engine open between runs that need the same one, so that they load the model once.

    with EnginePool() as engines:
        evaluate(spec, front, engines=engines)  # runs of one worker each, one after another

A healthy engine that such a run closes goes into the pool: its host stays alive and idle, and its device stays
claimed, visible to other processes. The next engine takes the host over if its order is equal (`HostedEngine`);
otherwise, and at the end of the block, the host is ended. A pool has one device and one engine at a time.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assayline.adapter import MARK
from assayline.clock import RunClock
from assayline.engines.devices.claims import Device, claim_device
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.messages import Open
from assayline.engines.process import HostProcess
from assayline.engines.senders import Senders

NO_CLOCK = RunClock(0.0, 0.0, "")


@dataclass(frozen=True, slots=True)
class IdleEngine:
    """A host that waits for the next run."""

    host: HostProcess | Senders
    order: Open
    """The order that it was opened or last taken over with."""
    env: Mapping[str, str]
    """Its environment, as returned by `own_variables`."""
    run_id: str
    """The run that it was loaded for; its log is in that run's folder."""
    close_timeout_s: float


class EnginePool:
    """Room for one device, and one host on it, which ends with the block of `with`."""

    def __init__(self) -> None:
        self._idle: IdleEngine | None = None
        self._device: Device | None = None
        self._claim = contextlib.ExitStack()
        self._first_run: str | None = None
        self.memory = DeviceMemory(())
        """The device's memory as it was without an idle engine."""

    def __enter__(self) -> "EnginePool":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

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
        if self._idle is None:
            self.memory = DeviceMemory(self._device.gpus)
        return replace(self._device, orphans=()) if is_held else self._device

    def keep(self, idle: IdleEngine) -> None:
        """Keep the host for the next run."""
        idle.host.listen(lambda line: None)
        self._idle = idle

    def take(self, order: Open, env: Mapping[str, str]) -> IdleEngine | None:
        """Return the idle host if it is alive and its order is equal; else end it, to make room."""
        idle, self._idle = self._idle, None
        if idle is None:
            return None
        if idle.host.exit_code is None and (_of_no_run(idle.order), idle.env) == (_of_no_run(order), env):
            return idle
        idle.host.end(idle.close_timeout_s)
        return None

    def keep_run(self, run_id: str) -> str | None:
        """Return the run that first used the pool's fake engine, which has no process; None for the first itself."""
        first, self._first_run = self._first_run, self._first_run or run_id
        return None if first == run_id else first

    def clear(self) -> None:
        """End the idle host and release the device."""
        idle, self._idle, self._device, self._first_run = self._idle, None, None, None
        try:
            if idle is not None:
                idle.host.end(idle.close_timeout_s)
        finally:
            self._claim.close()


def own_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return an engine's variables that differ from this process's, which libraries change during a run."""
    return {name: value for name, value in env.items() if os.environ.get(name) != value}


OUTSIDE_THE_HOST = ("mode", "max_concurrency", "batch_size", "order", "warmup", "min_concurrency", "env")
"""Fields of `EngineSpec` that an open engine does not depend on, and `env`, of which `own_variables` are compared."""


def _of_no_run(order: Open) -> Open:
    """Return an order without its run, worker, clock, and what each request has, to compare engines."""
    engine = order.engine.model_copy(update=dict.fromkeys(OUTSIDE_THE_HOST))
    of_request: dict[str, Any] = {"sampling": {}, "adapter": None, "model_id": order.model_id.partition(MARK)[0]}
    return replace(order, engine=engine, clock=NO_CLOCK, run_id="", worker="", engine_generation=0, **of_request)
