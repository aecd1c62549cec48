"""A head start: an engine's process that imports vLLM before its run is known.

    with head_start(spec, settings):
        ...  # a run of this spec, with one worker, in a thread of this process

A command spends seconds on importing Prefect and preparing its run, and an engine's process spends as many on importing
vLLM. So that process is started first, on a device that is claimed for it, and `hold_device` and `HostedEngine` take
both over. Nothing depends on it: where it cannot be had, or does not fit what the worker wants, the worker claims and
starts as it would have.
"""

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from assayline.engines.devices.claims import Device, claim_device, list_devices
from assayline.engines.environment import engine_environment
from assayline.engines.process import HostProcess
from assayline.errors import AssaylineError
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec


class HeadStart:
    """A claimed device and the process that was started on it, until they are taken over."""

    def __init__(self, device: Device, claim: contextlib.ExitStack, host: HostProcess, env: Mapping[str, str]) -> None:
        self.device = device
        self._claim = claim
        self._host: HostProcess | None = host
        self._env = env
        self._lock = threading.Lock()

    def take_claim(self, devices: list[Device]) -> contextlib.ExitStack | None:
        """The claim, if the device is one of these. If not, device and process are given up."""
        if (self.device.name, self.device.units) in [(device.name, device.units) for device in devices]:
            return self._claim.pop_all()
        self.give_up()
        return None

    def take_host(self, env: Mapping[str, str], log_path: Path, on_log: Callable[[str], None]) -> HostProcess | None:
        """The process, if it lives and has the environment that is wanted; its log moves to `log_path`.

        What this process's own environment has got meanwhile, from its libraries, makes no difference.
        """
        with self._lock:
            host, self._host = self._host, None
        if host is None:
            return None
        added = {name for name, value in env.items() if self._env.get(name) != value}
        lost = self._env.keys() - env.keys()
        if host.exit_code is None and not lost and all(os.environ.get(name) == env[name] for name in added):
            host.move_log(log_path, on_log)
            return host
        self._end(host)
        return None

    def give_up(self) -> None:
        """Ends the process, if nobody took it, and gives the device back. Safe to call twice."""
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            self._end(host)
        self._claim.close()

    @staticmethod
    def _end(host: HostProcess) -> None:
        host.kill()
        host.log_path.unlink(missing_ok=True)


_current: HeadStart | None = None


@contextlib.contextmanager
def head_start(spec: EvalSpec, settings: Settings) -> Iterator[None]:
    """Begins an engine's process for a run of this spec, where that can be; ends it if the run does not take it."""
    global _current
    assert _current is None, "there is a head start already"
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
    if not engine.hosts_vllm or spec.workers != 1 or spec.runner != "local":
        return None
    with contextlib.ExitStack() as claim, contextlib.suppress(AssaylineError, OSError):  # the worker will say it
        devices = list_devices(engine.device, 1, count_devices(engine.args))
        device = claim.enter_context(claim_device(devices, settings.lock_dir, 0.0))
        env = engine_environment(settings, device.env, engine.env)
        log_path = settings.data_dir.absolute() / "cache" / f"engine-{uuid.uuid4().hex[:8]}.log"
        host = HostProcess(env, log_path, lambda line: None, get_ready=True)
        return HeadStart(device, claim.pop_all(), host, env)
    return None
