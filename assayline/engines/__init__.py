"""Engines, which answer requests. `open_engine` opens the one that an order asks for."""

from assayline.engines.base import Engine, EngineHooks
from assayline.engines.client import OfflineEngine, StreamingEngine
from assayline.engines.fake import FakeEngine
from assayline.engines.messages import Open
from assayline.engines.pool import EnginePool
from assayline.engines.process import HostSetup
from assayline.engines.recovery.policy import Sizes
from assayline.load.progress import LoadProgress


def open_engine(
    order: Open,
    sizes: Sizes,
    setup: HostSetup,
    hooks: EngineHooks,
    *,
    mode: str = "continuous",
    load: LoadProgress | None = None,
    pool: EnginePool | None = None,
) -> Engine:
    """Open an engine and wait until it is ready. Raises EngineDiedError, DeviceError or SpecError.

    `sizes` sets the window; its other values are in the order's arguments. `mode` is how an offline engine is fed,
    `load` the load that a streaming engine follows, and its progress. The engine in `pool` is taken over, or ended to
    make room.
    """
    window = sizes.window_requests
    if not order.kind.has_model:
        return FakeEngine(
            order.clock,
            worker=order.worker,
            generation=order.engine_generation,
            window=window,
            reasoning=order.reasoning,
            hooks=hooks,
            kept_from=pool.keep_run(order.run_id) if pool else None,
        )
    if order.kind.is_streaming:
        return StreamingEngine(order, setup, hooks, window=window, load=load, pool=pool)
    return OfflineEngine(order, setup, hooks, window=window, mode=mode, pool=pool)
