"""Processes that prepare media beside the engine, which so keeps Python's lock to itself.

They are forked after vLLM is imported and before the engine opens: what is imported is shared, and no thread of OpenMP
and no context of a GPU exists yet. Each waits for the engine's configuration, which comes with its first request, and
answers one request at a time. One that dies takes no engine along; a picture that two of them die of is an error row.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL import Image

from assayline.engines.host.media import PREPARERS, Prepared
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request

Outcome = Prepared[dict[str, Any]]
MakePrepare = Callable[[Open, Any], Callable[[Request], Outcome]]
"""Of an order and vLLM's configuration: what makes a request's input."""

NAME = "media"
"""Of the processes; those that an engine cannot live without have other names."""

TRIES = 2

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
LARGEST_MMAP_THRESHOLD_BYTES = 2**25
KEPT_BYTES = 2**28
KEPT_BLOCKS = 8
"""Of 16 MiB, in which Pillow holds pixels."""


class Preparers:
    """Some processes, each called by one thread at a time."""

    def __init__(self, order: Open, make_prepare: MakePrepare, count: int = PREPARERS) -> None:
        """Forks them; each prepares with what `make_prepare` makes there."""
        self._left = count
        self._counting = threading.Lock()
        self._idle: queue.SimpleQueue[_Preparer | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(_Preparer(order, make_prepare))

    def prepare(self, request: Request, config: Any) -> Outcome | None:
        """The engine's input; None where no process is left. Raises MediaError, and what vLLM raises."""
        for _ in range(TRIES):
            preparer = self._find_idle()
            if preparer is None:
                return None
            try:
                outcome = preparer.ask(request, config)
            except (EOFError, OSError):
                self._forget()
                continue
            self._idle.put(preparer)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        raise MediaError(
            f"{TRIES} processes died that prepared its media, which may need more memory than there is. Make them "
            "smaller, or scale images down with prompts.media.max_pixels."
        )

    def _find_idle(self) -> "_Preparer | None":
        """One that lives; None where none is left. One that died meanwhile is no request's fault."""
        while (preparer := self._idle.get()) is not None and not preparer.is_alive:
            self._forget()
        if preparer is None:
            self._idle.put(None)  # for the next thread
        return preparer

    def _forget(self) -> None:
        with self._counting:
            self._left -= 1
            if self._left == 0:
                self._idle.put(None)


class _Preparer:
    """One process, and the pipe to it. It ends when the pipe does."""

    def __init__(self, order: Open, make_prepare: MakePrepare) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, order, make_prepare), name=NAME, daemon=True)
        self._process.start()
        theirs.close()
        self._is_configured = False

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, request: Request, config: Any) -> Outcome | Exception:
        """What became of the request's media. Raises EOFError or OSError where the process died."""
        if not self._is_configured:
            self._connection.send(config)
            self._is_configured = True
        self._connection.send(request)
        outcome: Outcome | Exception = pickle.loads(self._connection.recv_bytes())
        return outcome


def _serve(connection: Connection, order: Open, make_prepare: MakePrepare) -> None:
    """The process: prepares what it is sent, until nobody is left to send."""
    _keep_only(connection.fileno())
    _keep_memory()
    prepare: Callable[[Request], Outcome] | Exception
    with contextlib.suppress(EOFError, OSError):
        config = connection.recv()
        try:
            prepare = make_prepare(order, config)
        except Exception as error:
            prepare = error
        while True:
            connection.send_bytes(_answer(prepare, connection.recv()))


def _keep_memory() -> None:
    """Lets freed memory be used again. Given back after each picture, every page is a fault at the next one."""
    with contextlib.suppress(OSError, AttributeError):  # a libc that is not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]


def _answer(prepare: Callable[[Request], Outcome] | Exception, request: Request) -> bytes:
    """The outcome, pickled by hand: multiprocessing's own way shares tensors by file descriptors, which run out."""
    try:
        if isinstance(prepare, Exception):
            raise prepare
        return pickle.dumps(prepare(request), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # decoders and processors of models raise anything
        try:
            content = pickle.dumps(error)
            pickle.loads(content)
        except Exception:  # an exception of their own, which does not survive the way
            return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return content


def _keep_only(descriptor: int) -> None:
    """Closes what was inherited: a pipe or socket that stays open here would hide the end of whom it leads to."""
    for inherited in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if inherited > 2 and inherited != descriptor:
            with contextlib.suppress(OSError):  # the folder's own, closed by now
                os.close(inherited)
