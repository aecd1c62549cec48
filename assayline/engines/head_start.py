"""A head start: vLLM is imported, on a device that is claimed, before the run that needs it is known.

    with head_start(spec, settings):
        ...  # a run of this spec, with one worker, in a thread of this process

A command spends seconds on importing Prefect and preparing its run, and an engine's process spends as many on importing
vLLM. So the fork server is begun first, on a device that is claimed for it. `hold_device` takes that claim over, and
the engine is forked from the server. Nothing depends on it: where it cannot be had, or does not fit what the worker
wants, the worker claims and starts as it would have.
"""

import contextlib
import uuid
from collections.abc import Iterator

from assayline.engines.devices.claims import Device, claim_device, list_devices
from assayline.engines.environment import engine_environment
from assayline.engines.fork_server import begin_fork_server, end_fork_server, keep_imports
from assayline.errors import AssaylineError
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec


class HeadStart:
    """A device that is claimed, and for which vLLM is imported, until it is taken over."""

    def __init__(self, device: Device, claim: contextlib.ExitStack) -> None:
        self.device = device
        self._claim = claim

    def take_claim(self, devices: list[Device]) -> contextlib.ExitStack | None:
        """The claim, if the device is one of these. If not, the device and what was imported for it are given up."""
        if (self.device.name, self.device.units) in [(device.name, device.units) for device in devices]:
            return self._claim.pop_all()
        end_fork_server()
        self.give_up()
        return None

    def give_up(self) -> None:
        """Gives the device back, if nobody took it. Safe to call twice."""
        self._claim.close()


_current: HeadStart | None = None


@contextlib.contextmanager
def head_start(spec: EvalSpec, settings: Settings) -> Iterator[None]:
    """Begins a fork server for a run of this spec, where that can be; it ends with the block."""
    global _current
    assert _current is None, "there is a head start already"
    with keep_imports():
        _current = _begin(spec, settings)
        try:
            yield
        finally:
            begun, _current = _current, None
            if begun is not None:
                begun.give_up()


def find_head_start() -> HeadStart | None:
    """The head start of this process, if it has one."""
    return _current


def _begin(spec: EvalSpec, settings: Settings) -> HeadStart | None:
    engine = spec.engine
    if not engine.needs_device or spec.workers != 1 or spec.runner != "local":
        return None
    with contextlib.ExitStack() as claim, contextlib.suppress(AssaylineError, OSError):  # the worker will say it
        devices = list_devices(engine.device, 1, count_devices(engine.args))
        device = claim.enter_context(claim_device(devices, settings.lock_dir, 0.0))
        env = engine_environment(settings, device.env, engine.env)
        log_path = settings.data_dir.absolute() / "cache" / f"imports-{uuid.uuid4().hex[:8]}.log"
        begin_fork_server(env, log_path)
        return HeadStart(device, claim.pop_all())
    return None
