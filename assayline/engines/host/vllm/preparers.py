"""Processes that prepare media, so that the engine keeps Python's lock to itself.

They are forked after vLLM is imported and before the engine opens: they share the imports, and no OpenMP thread and no
GPU context exists yet. Each waits for the engine's configuration, which comes with its first request, and answers one
request after another. The engine survives the death of a preparer; media that kill two of them become an error row.

The engine's own thread sends the requests, and reads the results between two steps: a thread that waits for each result
would take Python's lock from it several times. A thread reads only the large ones.
"""

import contextlib
import ctypes
import io
import multiprocessing
import os
import pickle
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from assayline.engines.host.core import PREPARERS, Prepared
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request

LARGE_BYTES = 2**16
"""Tensors of at least this size follow the pickle; smaller ones are in it, as each piece costs a call."""

LARGEST_PICKLE_BYTES = 2**18
"""Largest pickle that the engine's thread reads itself, in a fraction of a millisecond."""

_HEAD = struct.Struct("=QQ")
"""Size in bytes of the table of large pieces, and of the pickle."""

Parcel = list[bytes | memoryview]


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


def pack(what: Any) -> Parcel:
    """Pickle an object into the pieces that `send` takes. Raises what pickling raises."""
    large: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < LARGE_BYTES:
            return True
        large.append(content)
        return False

    pickled = io.BytesIO()
    _Pickler(pickled, pickle.HIGHEST_PROTOCOL, buffer_callback=keep).dump(what)
    table = struct.pack(f"={len(large)}Q", *(content.nbytes for content in large))
    return [_HEAD.pack(len(table), pickled.tell()) + table + pickled.getbuffer(), *large]


def send(channel: socket.socket, parcel: Sequence[bytes | memoryview]) -> None:
    """Send packed pieces. Raises OSError if the other side is gone."""
    for piece in parcel:
        channel.sendall(piece)


def is_large(channel: socket.socket) -> bool | None:
    """Return whether reading the next message will take a while; None without one. Raises EOFError."""
    try:
        head = channel.recv(_HEAD.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    if not head:
        raise EOFError
    if len(head) < _HEAD.size:
        return None
    table_bytes, pickle_bytes = _HEAD.unpack(head)
    return bool(table_bytes) or bool(pickle_bytes > LARGEST_PICKLE_BYTES)


def receive(channel: socket.socket) -> Any:
    """Read and unpickle one object. Raises EOFError if the other side is gone, and what unpickling raises."""
    table_bytes, pickle_bytes = _HEAD.unpack(_read(channel, _HEAD.size))
    content = memoryview(_read(channel, table_bytes + pickle_bytes))
    sizes = struct.unpack(f"={table_bytes // 8}Q", content[:table_bytes])
    return pickle.loads(content[table_bytes:], buffers=[_read(channel, size) for size in sizes])


def _read(channel: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        count = channel.recv_into(rest, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        rest = rest[count:]
    return content


Outcome = Prepared[dict[str, Any]]
MakePrepare = Callable[[Open, Any], Callable[[Request], Outcome]]
"""Takes an order and vLLM's configuration. Returns a function that prepares a request's input."""

NAME = "media"
"""Name of the processes; processes that an engine cannot live without have other names."""

TRIES = 2

LEAST_ASKED, MOST_ASKED = 2, 16
"""Bounds of the requests queued at one process, so that it has the next one before its last answer is read."""

AHEAD_S = 0.02
"""Target for a process's queued work: the engine's thread only looks between two steps."""

ASKED_BYTES = 2**16
"""Most bytes queued at one process. A longer request goes to an idle process, which reads it at once."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
LARGEST_MMAP_THRESHOLD_BYTES = 2**25
KEPT_BYTES = 2**28
KEPT_BLOCKS = 8
"""Blocks of 16 MiB in which Pillow holds pixels."""


Done = Callable[[Outcome | Exception | None], object]
"""Takes the result of a request's media; None if no process is left."""


@dataclass(slots=True)
class _Job:
    request: Parcel
    done: Done
    deaths: int = 0
    """Deaths of processes that were working on this request."""


class Preparers:
    """A pool of processes, used by one thread only."""

    def __init__(self, order: Open, make_prepare: MakePrepare, count: int = PREPARERS) -> None:
        """Fork `count` processes, each of which calls `make_prepare` for its own function."""
        self._waiting: deque[_Job] = deque()
        self._config: Any = None
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._read_elsewhere: deque[tuple[_Preparer, Outcome | Exception | None]] = deque()
        """Results that threads have read; None for a process that died."""
        self._epoll.register(self._wake, select.EPOLLIN)
        self._living = [_Preparer(order, make_prepare) for _ in range(count)]
        for preparer in self._living:
            self._epoll.register(preparer.channel, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that can be read when `collect` has something to do."""
        return self._epoll.fileno()

    def submit(self, request: Request, config: Any, done: Done) -> bool:
        """Have a request's media prepared; `collect` calls `done`. False if no process is left."""
        if not self._living:
            return False
        self._config = config
        self._waiting.append(_Job(pack(request), done))
        self._send()
        return True

    def collect(self) -> None:
        """Take the results that are there, without waiting."""
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._wake:
                self._take_elsewhere()
            for preparer in [one for one in self._living if one.channel.fileno() == descriptor]:
                self._read(preparer)
        self._send()

    def _read(self, preparer: "_Preparer") -> None:
        try:
            while (large := is_large(preparer.channel)) is False:
                preparer.settle(receive(preparer.channel))
        except (EOFError, OSError):
            self._remove(preparer)
            return
        if large:
            self._epoll.unregister(preparer.channel)
            threading.Thread(target=self._read_large, args=[preparer], name="media-large", daemon=True).start()

    def _read_large(self, preparer: "_Preparer") -> None:
        outcome: Outcome | Exception | None = None
        with contextlib.suppress(EOFError, OSError):
            outcome = receive(preparer.channel)
        self._read_elsewhere.append((preparer, outcome))
        os.eventfd_write(self._wake, 1)

    def _take_elsewhere(self) -> None:
        os.eventfd_read(self._wake)
        while self._read_elsewhere:
            preparer, outcome = self._read_elsewhere.popleft()
            if preparer not in self._living:
                continue  # it was found dead meanwhile, and its requests were queued again
            if outcome is None:
                self._remove(preparer)
            else:
                self._epoll.register(preparer.channel, select.EPOLLIN)
                preparer.settle(outcome)

    def _remove(self, preparer: "_Preparer") -> None:
        """Remove a dead process. It died of its first request; the others, not yet begun, are queued again."""
        self._living.remove(preparer)
        with contextlib.suppress(OSError):  # closing does not: vLLM's own processes may have copies of it
            self._epoll.unregister(preparer.channel)
        preparer.channel.close()
        asked, preparer.asked = preparer.asked, deque()
        if asked:
            asked[0].deaths += 1
            if asked[0].deaths == TRIES:
                asked.popleft().done(_blame())
        self._waiting.extendleft(reversed(asked))
        if not self._living:
            waiting, self._waiting = self._waiting, deque()
            for job in waiting:
                job.done(None)

    def _send(self) -> None:
        """Send waiting requests to the processes that may take them."""
        while self._waiting and self._living:
            preparer = min(self._living, key=lambda one: len(one.asked))
            if not preparer.may_take(self._waiting[0]):
                return
            try:
                preparer.ask(self._waiting[0], self._config)
            except OSError:
                self._remove(preparer)
            else:
                preparer.asked.append(self._waiting.popleft())


def _blame() -> MediaError:
    return MediaError(
        f"{TRIES} processes died that prepared its media, which may need more memory than there is. hint: make "
        "them smaller, or scale images down with prompts.media.max_pixels."
    )


class _Preparer:
    """One process, and the channel to it. It ends when the channel does."""

    def __init__(self, order: Open, make_prepare: MakePrepare) -> None:
        self.channel, theirs = socket.socketpair()
        self.asked: deque[_Job] = deque()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(theirs, order, make_prepare), name=NAME, daemon=True)
        self._process.start()
        theirs.close()
        self._is_configured = False
        self._most_asked = LEAST_ASKED

    def may_take(self, job: _Job) -> bool:
        """Return whether another request can be sent without making the sender wait."""
        size = sum(len(piece) for one in (*self.asked, job) for piece in one.request)
        return not self.asked or (len(self.asked) < self._most_asked and size <= ASKED_BYTES)

    def settle(self, outcome: Outcome | Exception) -> None:
        """Pass on the result of its first request."""
        if isinstance(outcome, Prepared) and (seconds := outcome.columns.get("media_prepare_s")):
            self._most_asked = min(max(LEAST_ASKED, round(AHEAD_S / seconds)), MOST_ASKED)
        self.asked.popleft().done(outcome)

    def ask(self, job: _Job, config: Any) -> None:
        """Send a request. Raises OSError if the process is dead."""
        if not self._is_configured:
            send(self.channel, pack(config))
            self._is_configured = True
        send(self.channel, job.request)


def keep_memory() -> None:
    """Keep freed memory for reuse. If it were returned after each image, the next would fault on every page."""
    with contextlib.suppress(OSError, AttributeError):  # a libc that is not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]


def _serve(channel: socket.socket, order: Open, make_prepare: MakePrepare) -> None:
    """Run the process: prepare each request received, until the sender is gone."""
    _keep_only(channel.fileno())
    keep_memory()
    prepare: Callable[[Request], Outcome] | Exception
    with contextlib.suppress(EOFError, OSError):
        config = receive(channel)
        try:
            prepare = make_prepare(order, config)
        except Exception as error:
            prepare = error
        while True:
            send(channel, _answer(prepare, receive(channel)))


def _answer(prepare: Callable[[Request], Outcome] | Exception, request: Request) -> Parcel:
    try:
        if isinstance(prepare, Exception):
            raise prepare
        return pack(prepare(request))
    except Exception as error:  # decoders and processors of models raise anything
        try:
            pickle.loads(pickle.dumps(error))
            return pack(error)
        except Exception:  # a custom exception that cannot be pickled
            return pack(RuntimeError(f"{type(error).__name__}: {error}"))


def _keep_only(descriptor: int) -> None:
    """Close inherited descriptors: an open pipe or socket would hide the death of its other owner."""
    for inherited in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if inherited > 2 and inherited != descriptor:
            with contextlib.suppress(OSError):  # the folder's own, closed by now
                os.close(inherited)
