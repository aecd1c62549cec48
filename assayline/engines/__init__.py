"""Engines: what answers requests. `open_engine` makes the one that a spec asks for."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from assayline.answer_spec import ReasoningSpec
from assayline.clock import RunClock
from assayline.engine_spec import EngineSpec
from assayline.engines.base import Engine, EngineHooks
from assayline.engines.environment import engine_environment
from assayline.engines.fake import FakeEngine
from assayline.engines.offline import OfflineConfig, OfflineEngine
from assayline.engines.sizes import Sizes
from assayline.settings import Settings

FIRST_SIZES = Sizes()


def open_engine(
    spec: EngineSpec,
    *,
    model: str,
    model_id: str,
    model_args: Mapping[str, str],
    sampling: Mapping[str, object],
    clock: RunClock,
    worker: str,
    device_env: Mapping[str, str],
    log_path: Path,
    settings: Settings,
    hooks: EngineHooks,
    reasoning: ReasoningSpec | None = None,
    engine_generation: int = 0,
    sizes: Sizes = FIRST_SIZES,
    changed_args: Mapping[str, object] = MappingProxyType({}),
) -> Engine:
    """Opens an engine and waits until it is ready. Raises EngineDiedError, DeviceError or SpecError.

    `model_args` are engine arguments that belong to the model, such as the resolved revision of a hub id;
    `changed_args` are those that a recovery lays over the spec's, and so is the window of `sizes`.
    """
    window = sizes.window_requests or spec.window
    if spec.backend == "fake":
        return FakeEngine(
            clock, worker=worker, generation=engine_generation, window=window, reasoning=reasoning, hooks=hooks
        )
    return OfflineEngine(
        OfflineConfig(
            model=model,
            model_id=model_id,
            clock=clock,
            log_path=log_path,
            worker=worker,
            engine_generation=engine_generation,
            device=spec.device,
            mode=spec.mode,
            window=window,
            batch_size=sizes.window_requests or spec.batch_size,
            record_token_times=spec.record_token_times,
            reasoning=reasoning,
            args={**spec.args, **model_args, **changed_args},
            sampling=dict(sampling),
            env=engine_environment(settings, device_env, spec.env),
            start_timeout_s=settings.engine_start_timeout_s,
            close_timeout_s=settings.engine_close_timeout_s,
            stall_timeout_s=settings.engine_stall_timeout_s,
        ),
        hooks,
    )
