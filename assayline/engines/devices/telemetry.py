"""DeviceSampler: what a worker's device and its machine were doing, once a second, in a thread of its own.

It reads from the moment at which the device is claimed to the one at which it is given back, so that what an engine
draws while it loads, and what it draws after its death, is known too. It is in the worker's process and not in the
engine's: the driver's library answers slowly now and then, and an engine must not wait for it. Whatever a sensor or the
thread itself does, the run continues; what is not known is None.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

import psutil

from assayline.clock import RunClock
from assayline.engines.devices.nvidia import GpuSensors, hold_driver
from assayline.records import DeviceSample

INTERVAL_S = 1.0
END_WAIT_S = 2.0
"""How long the last sample may take: calls of the driver's library have no time-out."""

HOST = "host"
"""Name of the machine itself among the devices."""


class DeviceSampler:
    """One thread that samples some GPUs and the machine. Use it as a context manager."""

    def __init__(self, gpus: tuple[str, ...], worker: str, clock: RunClock, interval_s: float = INTERVAL_S) -> None:
        """`gpus` are named as in CUDA_VISIBLE_DEVICES; without any, the machine alone is sampled."""
        self._gpus = gpus
        self._worker = worker
        self._clock = clock
        self._interval_s = interval_s
        self._samples: deque[DeviceSample] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-telemetry", daemon=True)
        self._trouble: str | None = None

    def __enter__(self) -> "DeviceSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(END_WAIT_S)

    def hand_over(self, take: Callable[[DeviceSample], object], log: Callable[[str], object]) -> None:
        """Gives `take` the samples since the last call, oldest first, and tells `log`, once, if there will be no more.

        Both are called in the caller's thread.
        """
        while self._samples:
            take(self._samples.popleft())
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            log(f"Telemetry of the device has ended: {trouble}")

    def _run(self) -> None:
        try:
            with hold_driver() as driver:
                self._sample_on([GpuSensors(driver, gpu) for gpu in self._gpus])
        except Exception as error:  # telemetry is never worth a run
            self._trouble = f"{type(error).__name__}: {error}"

    def _sample_on(self, gpus: list[GpuSensors]) -> None:
        psutil.cpu_percent()  # it counts from the call before
        due = time.monotonic()
        is_first = True
        while True:
            is_last = self._ended.is_set()
            for gpu in gpus:
                self._samples.append(self._sample_gpu(gpu))
            self._samples.append(self._sample_host(is_first))
            if is_last:
                return
            is_first = False
            due = max(due + self._interval_s, time.monotonic())  # late is late: nothing is caught up on
            self._ended.wait(due - time.monotonic())

    def _sample_gpu(self, gpu: GpuSensors) -> DeviceSample:
        at_s = self._clock.now_s()
        reading = gpu.read()
        return DeviceSample(self._worker, f"cuda-{gpu.name}", at_s, **reading)

    def _sample_host(self, is_first: bool) -> DeviceSample:
        memory = psutil.virtual_memory()
        busy = psutil.cpu_percent()
        return DeviceSample(
            self._worker,
            HOST,
            self._clock.now_s(),
            utilization_share=None if is_first else busy / 100,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
        )
