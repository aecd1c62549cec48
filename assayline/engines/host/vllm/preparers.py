"""Processes that prepare media, so that the engine keeps Python's lock to itself.

They are forked after vLLM is imported and before the engine opens: they share the imports, and no OpenMP thread and no
GPU context exists yet. A thread of the engine's process hands each its requests and takes the results. Large tensors
cross in memory that a process shares with the engine's. It has no name, so nothing is left of it after a kill.

The engine survives the death of a preparer; media that kill two of them become an error row.
"""

import contextlib
import ctypes
import io
import mmap
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from PIL import Image

from assayline.engines.host.core import PREPARERS, Prepared
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request

Outcome = Prepared[dict[str, Any]]
Prepare = Callable[[Request], Outcome]
"""Prepares a request's input. Raises MediaError, and any error of a decoder or a model's processor."""

MakePrepare = Callable[[Open, Any], Prepare]
"""Takes an order and vLLM's configuration."""

NAME = "media"
"""Name of the processes; processes that an engine cannot live without have other names."""

TRIES = 2

LARGE_BYTES = 2**16
"""Content of at least this size crosses in shared memory; smaller pieces are in the pickle."""

MEMORY_BYTES = 2**26
"""Size of that memory. The pickle has the rest, too."""

PR_SET_PDEATHSIG, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3
"""Parameters of Linux's prctl and glibc's mallopt."""
KEPT_BYTES, LARGEST_MMAP_THRESHOLD_BYTES = 2**28, 2**25
KEPT_BLOCKS = 8
"""Blocks of 16 MiB in which Pillow holds pixels."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        import torch

        if type(obj) is not torch.Tensor or obj.device.type != "cpu" or obj.layout is not torch.strided:
            return NotImplemented
        flat = obj.detach().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        return _restore_tensor, (pickle.PickleBuffer(flat.numpy()), obj.dtype, tuple(obj.shape))


def _restore_tensor(content: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


class Pipe:
    """One end of a pipe to a process that is forked later. Large content crosses in memory that both ends map.

    The next object must not be sent before the other end has received the last one.
    """

    def __init__(self, connection: Connection, memory: mmap.mmap) -> None:
        self._connection = connection
        self._memory = memory

    @classmethod
    def pair(cls) -> tuple["Pipe", "Pipe"]:
        """Return both ends."""
        memory = mmap.mmap(-1, MEMORY_BYTES)  # has no name, and takes room only for what was written
        ours, theirs = multiprocessing.Pipe()
        return cls(ours, memory), cls(theirs, memory)

    def send(self, what: Any) -> None:
        """Send an object. Raises OSError if the other side is gone, and what pickling raises."""
        spans: list[tuple[int, int]] = []
        end = 0

        def keep(buffer: pickle.PickleBuffer) -> bool:
            nonlocal end
            content = buffer.raw()
            begin = end
            if content.nbytes < LARGE_BYTES or begin + content.nbytes > len(self._memory):
                return True
            end += content.nbytes
            self._memory[begin:end] = content
            spans.append((begin, content.nbytes))
            return False

        pickled = io.BytesIO()
        _Pickler(pickled, pickle.HIGHEST_PROTOCOL, buffer_callback=keep).dump(what)
        self._connection.send((spans, pickled.getvalue()))

    def receive(self) -> Any:
        """Return the next object. Raises EOFError or OSError if the other side is gone, and what unpickling raises."""
        spans, pickled = self._connection.recv()
        return pickle.loads(pickled, buffers=[self._copy(*span) for span in spans])

    def close(self) -> None:
        self._connection.close()

    def _copy(self, begin: int, size: int) -> Any:
        import numpy as np  # which copies without Python's lock

        return np.frombuffer(self._memory, np.uint8, size, begin).copy()


@dataclass(slots=True)
class _Job:
    request: Request
    future: "Future[Outcome]" = field(default_factory=Future)
    deaths: int = 0
    """Deaths of processes that were working on this request."""

    def finish(self, outcome: Outcome | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    def follow(self, other: "Future[Outcome]") -> None:
        self.finish(other.exception() or other.result())


class Preparers:
    """A pool of processes."""

    def __init__(self, order: Open, make_prepare: MakePrepare, count: int = PREPARERS) -> None:
        """Fork `count` processes, each of which calls `make_prepare` for its own function."""
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._ending = threading.Lock()
        self._pipes: list[Pipe] = []
        context = multiprocessing.get_context("fork")
        for _ in range(count):
            ours, theirs = Pipe.pair()
            context.Process(target=_serve, args=(theirs, order, make_prepare), name=NAME, daemon=True).start()
            theirs.close()
            self._pipes.append(ours)
        self._living = count

    def begin(self, config: Any, prepare: Prepare, threads: Executor) -> None:
        """Let the processes prepare requests; each gets vLLM's configuration with its first one.

        Once none is left, `threads` of this process call `prepare`.
        """
        self._prepare, self._threads = prepare, threads
        for pipe in self._pipes:
            threading.Thread(target=self._run, args=[pipe, config], name=NAME, daemon=True).start()

    def submit(self, request: Request) -> "Future[Outcome]":
        """Have a request's media prepared."""
        job = _Job(request)
        job.future.set_running_or_notify_cancel()  # a task that waits cannot cancel it
        with self._ending:
            self._jobs.put(job)
            self._prepare_here()
        return job.future

    def _run(self, pipe: Pipe, config: Any) -> None:
        """Keep one process busy until it is dead."""
        while True:
            job = self._jobs.get()
            try:
                pipe.send((config, job.request))
            except OSError:  # it was dead before
                break
            config = None
            try:
                outcome = pipe.receive()
            except Exception:  # a process whose messages cannot be read is as good as dead
                job.deaths += 1
                break
            job.finish(outcome)
        pipe.close()
        self._leave(job)

    def _leave(self, job: _Job) -> None:
        """Pass on the last job of a dead process, and those of all if it was the last process."""
        with self._ending:
            self._living -= 1
            if job.deaths == TRIES:
                job.finish(_blame())
            else:
                self._jobs.put(job)
            self._prepare_here()

    def _prepare_here(self) -> None:
        """Prepare the waiting requests in this process if no other one is left."""
        while not self._living and not self._jobs.empty():
            job = self._jobs.get()
            self._threads.submit(self._prepare, job.request).add_done_callback(job.follow)


def _blame() -> MediaError:
    return MediaError(
        f"{TRIES} processes died that prepared its media, which may need more memory than there is. hint: make "
        "them smaller, or scale images down with prompts.media.max_pixels."
    )


def _serve(pipe: Pipe, order: Open, make_prepare: MakePrepare) -> None:
    """Run the process: prepare each request received, until the sender is gone."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Keep freed memory for reuse. If it were returned after each image, the next would fault on every page.
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]
    prepare: Prepare | Exception
    with contextlib.suppress(EOFError, OSError):
        config, request = pipe.receive()
        try:
            prepare = make_prepare(order, config)
        except Exception as error:
            prepare = error
        while True:
            _answer(pipe, prepare, request)
            _, request = pipe.receive()


def _answer(pipe: Pipe, prepare: Prepare | Exception, request: Request) -> None:
    try:
        if isinstance(prepare, Exception):
            raise prepare
        pipe.send(prepare(request))
    except Exception as error:  # decoders and processors of models raise anything
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # a custom exception that cannot be pickled
            error = RuntimeError(f"{type(error).__name__}: {error}")
        pipe.send(error)
