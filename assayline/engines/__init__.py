"""Engines: what answers requests. `open_engine` makes the one that a spec asks for."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assayline.answer_spec import ReasoningSpec
from assayline.clock import RunClock
from assayline.engine_spec import EngineSpec
from assayline.engines.base import Engine, EngineHooks
from assayline.engines.environment import engine_environment
from assayline.engines.fake import FakeEngine
from assayline.engines.offline import OfflineConfig, OfflineEngine
from assayline.engines.sizes import Sizes
from assayline.engines.streaming import AsyncEngine, ServerEngine, StreamingConfig
from assayline.load.course import LoadCourse
from assayline.settings import Settings

FIRST_SIZES = Sizes()
STALL_MARGIN_S = 60.0
"""A server's requests end by their own time limit before the whole of it is taken for dead."""


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
    chat_kwargs: Mapping[str, object] = MappingProxyType({}),
    engine_generation: int = 0,
    sizes: Sizes = FIRST_SIZES,
    changed_args: Mapping[str, object] = MappingProxyType({}),
    course: LoadCourse | None = None,
    run_id: str = "",
) -> Engine:
    """Opens an engine and waits until it is ready. Raises EngineDiedError, DeviceError or SpecError.

    `model_args` are engine arguments that belong to the model, such as the resolved revision of a hub id;
    `changed_args` are those that a recovery lays over the spec's, and so is the window of `sizes`. `course` is the load
    that a streaming engine follows, and how far it is; `run_id` the run that all this is for.
    """
    window = sizes.window_requests or spec.window
    if spec.backend == "fake":
        return FakeEngine(
            clock, worker=worker, generation=engine_generation, window=window, reasoning=reasoning, hooks=hooks
        )
    common: dict[str, Any] = {
        "model": model,
        "model_id": model_id,
        "clock": clock,
        "log_path": log_path,
        "run_id": run_id,
        "worker": worker,
        "engine_generation": engine_generation,
        "device": spec.device,
        "reasoning": reasoning,
        "chat_kwargs": chat_kwargs,
        "args": {**spec.args, **model_args, **changed_args},
        "sampling": dict(sampling),
        "env": engine_environment(settings, device_env, spec.env),
        "start_timeout_s": settings.engine_start_timeout_s,
        "close_timeout_s": settings.engine_close_timeout_s,
        "stall_timeout_s": settings.engine_stall_timeout_s,
    }
    if spec.backend == "offline":
        batch_size = sizes.window_requests or spec.batch_size
        offline = OfflineConfig(
            **common,
            window=window,
            record_token_times=spec.record_token_times,
            mode=spec.mode,
            batch_size=batch_size,
        )
        return OfflineEngine(offline, hooks)
    common["window"] = sizes.window_requests or (course and course.window_requests) or spec.window
    if spec.backend == "async":
        return AsyncEngine(StreamingConfig(**common, record_token_times=True, course=course), hooks)
    common["stall_timeout_s"] = max(settings.engine_stall_timeout_s, spec.server.timeout_s + STALL_MARGIN_S)
    return ServerEngine(StreamingConfig(**common, record_token_times=True, course=course, server=spec.server), hooks)
