"""An engine that recovers, opened as a spec says: what a worker's run and a loop of one's own have in common."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.engines import open_engine
from assayline.engines.base import Engine, EngineHooks
from assayline.engines.devices import claims
from assayline.engines.devices.claims import Device, list_devices
from assayline.engines.devices.memory import DeviceMemory
from assayline.engines.messages import Open
from assayline.engines.parking import ParkingLot
from assayline.engines.process import HostSetup
from assayline.engines.recovery.engine import AdaptiveEngine, Recorder
from assayline.engines.recovery.policy import RecoveryPolicy
from assayline.engines.recovery.sizes import Sizes, choose_window, sizes_of
from assayline.load.course import LoadCourse
from assayline.model import ModelIdentity
from assayline.records import Json
from assayline.requests.model_config import choose_media_args
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec

NO_DEVICE = Device("none", {}, ())


@dataclass(frozen=True, slots=True)
class Opening:
    """What every engine of one worker is opened with."""

    spec: EvalSpec
    settings: Settings
    ordered: Open
    """Each generation's order differs in its number and in `args` alone."""
    device: Device
    log_folder: Path
    """Each generation's log is a file of it."""
    hooks: EngineHooks
    course: LoadCourse
    lot: ParkingLot | None = None

    def open(
        self,
        record: Recorder,
        *,
        first_generation: int = 0,
        may_isolate: Callable[[int], bool] = lambda isolated: True,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> AdaptiveEngine:
        """The first engine, or as many as it takes; see AdaptiveEngine."""
        spec = self.spec
        policy = RecoveryPolicy(
            sizes_of(spec.engine.args, choose_window(spec.engine, self.course)),
            enabled=spec.engine.recovery.enabled,
            min_batch_size=spec.engine.recovery.min_batch_size,
            grow=spec.engine.recovery.grow,
            has_window=not self.course.is_open_loop,
        )
        return AdaptiveEngine(
            self._open_one,
            policy,
            record,
            DeviceMemory(self.device.gpus),
            worker=self.ordered.worker,
            first_generation=first_generation,
            memory_wait_s=self.settings.engine_memory_wait_s,
            may_isolate=may_isolate,
            should_stop=should_stop,
        )

    def _open_one(self, sizes: Sizes, changed_args: dict[str, Json], generation: int) -> Engine:
        engine = self.spec.engine
        log_path = self.log_folder / f"{self.ordered.worker}-generation-{generation}.log"
        return open_engine(
            replace(self.ordered, args={**self.ordered.args, **changed_args}, engine_generation=generation),
            sizes,
            HostSetup.of(self.settings, engine, self.device.env, log_path),
            self.hooks,
            mode=engine.mode,
            course=self.course,
            lot=self.lot,
        )


def locate_model(spec: EvalSpec, model: ModelIdentity) -> tuple[str, dict[str, Json]]:
    """The folder or hub id that an engine loads, and the arguments that model and prompts ask for beside the spec's."""
    folder = model.folder
    local = not spec.engine.kind.has_model or Path(spec.model).expanduser().is_dir()
    revision = None if local or folder is None else folder.name
    pinned = {"revision": revision, "tokenizer_revision": revision} if revision else {}
    return str(folder.absolute()) if local and folder else spec.model, {**choose_media_args(spec, folder), **pinned}


def claim_device(
    spec: EvalSpec,
    settings: Settings,
    stack: contextlib.ExitStack,
    holder: str,
    *,
    lot: ParkingLot | None = None,
    on_wait: Callable[[str], object] = str,
    workers_here: int = 1,
    whole_machine: bool = True,
) -> Device:
    """A device for an engine, held until `stack` is undone, or for as long as `lot` has room for it.

    `holder` names whoever has it to others who want it; `on_wait` is as `claims.claim_device` says. Without GPUs,
    `workers_here` share the machine's cores; `whole_machine`: it must have a device for each of them. Raises
    DeviceError or SpecError.
    """
    if not spec.engine.needs_device or spec.engine.uses_ray_executor:
        return NO_DEVICE
    devices = list_devices(
        spec.engine.device, workers_here, count_devices(spec.engine.args), whole_machine=whole_machine
    )
    if lot is not None:
        holder = f"a benchmark, whose first run here was {holder}"
        return lot.claim(devices, settings.lock_dir, settings.device_wait_s, holder, on_wait)
    return stack.enter_context(claims.claim_device(devices, settings.lock_dir, settings.device_wait_s, holder, on_wait))
