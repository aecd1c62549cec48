"""Engines, which answer requests. `open_engine` opens the one that an order asks for."""

from assayline.engines.base import Engine, EngineHooks
from assayline.engines.client import OfflineEngine, StreamingEngine
from assayline.engines.fake import FakeEngine
from assayline.engines.messages import Open
from assayline.engines.parking import ParkingLot
from assayline.engines.process import HostSetup
from assayline.engines.recovery.policy import Sizes
from assayline.load.course import LoadCourse


def open_engine(
    order: Open,
    sizes: Sizes,
    setup: HostSetup,
    hooks: EngineHooks,
    *,
    mode: str = "continuous",
    course: LoadCourse | None = None,
    lot: ParkingLot | None = None,
) -> Engine:
    """Open an engine and wait until it is ready. Raises EngineDiedError, DeviceError or SpecError.

    `sizes` sets the window; its other values are in the order's arguments. `mode` is how an offline engine is fed,
    `course` the load that a streaming engine follows, and its progress. An engine parked in `lot` is taken over, or
    ended to make room.
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
            kept_from=lot.keep_run(order.run_id) if lot else None,
        )
    if order.kind.is_streaming:
        return StreamingEngine(order, setup, hooks, window=window, course=course, lot=lot)
    return OfflineEngine(order, setup, hooks, window=window, mode=mode, lot=lot)
