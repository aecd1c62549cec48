"""Engines, which answer requests. `open_engine` opens the one that an order asks for."""

from assayline.engines.base import AnyEngine, EngineHooks
from assayline.engines.client import HostedEngine
from assayline.engines.fake import FakeEngine
from assayline.engines.messages import Open
from assayline.engines.pool import EnginePool
from assayline.engines.process import HostSetup
from assayline.load.progress import LoadProgress


def open_engine(
    order: Open,
    window: int | None,
    setup: HostSetup,
    hooks: EngineHooks,
    *,
    load: LoadProgress | None = None,
    pool: EnginePool | None = None,
) -> AnyEngine:
    """Open an engine and wait until it is ready. Raises EngineDiedError, DeviceError or SpecError.

    `window` is the most requests in flight, None for the engine's default; `load` the load that it follows, and its
    progress. The engine in `pool` is taken over, or ended to make room.
    """
    if not order.engine.kind.has_model:
        return FakeEngine(order, hooks, window=window, kept_from=pool.keep_run(order.run_id) if pool else None)
    return HostedEngine(order, setup, hooks, window=window, load=load, pool=pool)
