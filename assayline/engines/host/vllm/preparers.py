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
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from assayline.engines.host.media import PREPARERS, Prepared
from assayline.engines.host.vllm.parcels import Parcel, pack, receive, send
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request

Outcome = Prepared[dict[str, Any]]
MakePrepare = Callable[[Open, Any], Callable[[Request], Outcome]]
"""Of an order and vLLM's configuration: what makes a request's input."""

NAME = "media"
"""Of the processes; those that an engine cannot live without have other names."""

TRIES = 2

ASKERS = 2
"""Threads that ask one process at a time: it has its next request before the answer to the last one is read."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
LARGEST_MMAP_THRESHOLD_BYTES = 2**25
KEPT_BYTES = 2**28
KEPT_BLOCKS = 8
"""Of 16 MiB, in which Pillow holds pixels."""


class Preparers:
    """Some processes, each asked by a few threads."""

    def __init__(self, order: Open, make_prepare: MakePrepare, count: int = PREPARERS) -> None:
        """Forks them; each prepares with what `make_prepare` makes there."""
        self._left = count * ASKERS
        self._counting = threading.Lock()
        self._idle: queue.SimpleQueue[_Preparer | None] = queue.SimpleQueue()
        started = [_Preparer(order, make_prepare) for _ in range(count)]
        for preparer in started * ASKERS:
            self._idle.put(preparer)

    def prepare(self, request: Request, config: Any) -> Outcome | None:
        """The engine's input; None where no process is left. Raises MediaError, and what vLLM raises."""
        tries = 0
        while tries < TRIES:
            preparer = self._find_idle()
            if preparer is None:
                return None
            try:
                outcome = preparer.ask(request, config)
            except _OtherDiedError:
                self._forget()
                continue
            except (EOFError, OSError):
                self._forget()
                tries += 1
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


class _OtherDiedError(OSError):
    """The process died of the request before this one, which it had not begun."""


class _Preparer:
    """One process, and the channel to it. It ends when the channel does."""

    def __init__(self, order: Open, make_prepare: MakePrepare) -> None:
        self._channel, theirs = socket.socketpair()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(theirs, order, make_prepare), name=NAME, daemon=True)
        self._process.start()
        theirs.close()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._is_configured = self._is_dead = False

    @property
    def is_alive(self) -> bool:
        return not self._is_dead and self._process.is_alive()

    def ask(self, request: Request, config: Any) -> Outcome | Exception:
        """What became of the request's media. Raises EOFError or OSError where the process died.

        Answers come in the order of requests: whoever has sent one waits for its turn to read before another sends.
        """
        with self._sending:
            try:
                if not self._is_configured:
                    send(self._channel, pack(config))
                    self._is_configured = True
                send(self._channel, pack(request))
            except OSError:
                raise _OtherDiedError from None
            self._receiving.acquire()
        try:
            if self._is_dead:
                raise _OtherDiedError
            outcome: Outcome | Exception = receive(self._channel)
            return outcome
        except (EOFError, OSError):
            self._is_dead = True
            raise
        finally:
            self._receiving.release()


def _serve(channel: socket.socket, order: Open, make_prepare: MakePrepare) -> None:
    """The process: prepares what it is sent, until nobody is left to send."""
    _keep_only(channel.fileno())
    _keep_memory()
    prepare: Callable[[Request], Outcome] | Exception
    with contextlib.suppress(EOFError, OSError):
        config = receive(channel)
        try:
            prepare = make_prepare(order, config)
        except Exception as error:
            prepare = error
        while True:
            send(channel, _answer(prepare, receive(channel)))


def _keep_memory() -> None:
    """Lets freed memory be used again. Given back after each picture, every page is a fault at the next one."""
    with contextlib.suppress(OSError, AttributeError):  # a libc that is not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]


def _answer(prepare: Callable[[Request], Outcome] | Exception, request: Request) -> Parcel:
    try:
        if isinstance(prepare, Exception):
            raise prepare
        return pack(prepare(request))
    except Exception as error:  # decoders and processors of models raise anything
        try:
            pickle.loads(pickle.dumps(error))
            return pack(error)
        except Exception:  # an exception of their own, which does not survive the way
            return pack(RuntimeError(f"{type(error).__name__}: {error}"))


def _keep_only(descriptor: int) -> None:
    """Closes what was inherited: a pipe or socket that stays open here would hide the end of whom it leads to."""
    for inherited in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if inherited > 2 and inherited != descriptor:
            with contextlib.suppress(OSError):  # the folder's own, closed by now
                os.close(inherited)
