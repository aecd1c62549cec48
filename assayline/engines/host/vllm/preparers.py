"""Processes that prepare media beside the engine, which so keeps Python's lock to itself.

They are forked after vLLM is imported and before the engine opens: what is imported is shared, and no thread of OpenMP
and no context of a GPU exists yet. Each waits for the engine's configuration, which comes with its first request, and
answers one request after another. One that dies takes no engine along; a picture that two of them die of is an error
row.

The engine's own thread asks them, and reads between two steps what they have prepared: a thread that waits for each
picture would take Python's lock from it several times. Large ones alone are read by a thread.
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
"""A tensor of this size travels behind the pickle; a smaller one in it, as each piece costs a call."""

LARGEST_PICKLE_BYTES = 2**18
"""Of a parcel that is not large: a fraction of a millisecond."""

_HEAD = struct.Struct("=QQ")
"""Bytes of the table of large pieces, and of the pickle."""

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
    """What `send` takes. Raises whatever pickling raises."""
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
    """Raise OSError where nobody is left to take it."""
    for piece in parcel:
        channel.sendall(piece)


def is_large(channel: socket.socket) -> bool | None:
    """Return whether reading what comes next will take a while; None where nothing has come. Raises EOFError."""
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
    """What was packed. Raises EOFError where the other side is gone, and what unpickling raises."""
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
"""Of an order and vLLM's configuration: what makes a request's input."""

NAME = "media"
"""Of the processes; those that an engine cannot live without have other names."""

TRIES = 2

LEAST_ASKED, MOST_ASKED = 2, 16
"""Requests that one process has at a time: its next ones are there before the answer to the last one is read."""

AHEAD_S = 0.02
"""How long a process is to be busy with what it has: the engine's thread may only look after a step."""

ASKED_BYTES = 2**16
"""Of all that a process has; a longer request goes to one that has nothing, reads at once, and lets nobody wait."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
LARGEST_MMAP_THRESHOLD_BYTES = 2**25
KEPT_BYTES = 2**28
KEPT_BLOCKS = 8
"""Of 16 MiB, in which Pillow holds pixels."""


Done = Callable[[Outcome | Exception | None], object]
"""Takes what became of a request's media; None where no process is left to say."""


@dataclass(slots=True)
class _Job:
    request: Parcel
    done: Done
    deaths: int = 0
    """Of processes that had just begun this request."""


class Preparers:
    """Some processes, used by one thread alone."""

    def __init__(self, order: Open, make_prepare: MakePrepare, count: int = PREPARERS) -> None:
        """Fork them; each prepares with what `make_prepare` makes there."""
        self._waiting: deque[_Job] = deque()
        self._config: Any = None
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._read_elsewhere: deque[tuple[_Preparer, Outcome | Exception | None]] = deque()
        """What threads have read; None of a process that died."""
        self._epoll.register(self._wake, select.EPOLLIN)
        self._living = [_Preparer(order, make_prepare) for _ in range(count)]
        for preparer in self._living:
            self._epoll.register(preparer.channel, select.EPOLLIN)

    def fileno(self) -> int:
        """Can be read when `collect` has something to do."""
        return self._epoll.fileno()

    def submit(self, request: Request, config: Any, done: Done) -> bool:
        """Have a request's media prepared; `collect` calls `done`. False where no process is left."""
        if not self._living:
            return False
        self._config = config
        self._waiting.append(_Job(pack(request), done))
        self._send()
        return True

    def collect(self) -> None:
        """Take what was prepared meanwhile, without waiting."""
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
            self._bury(preparer)
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
                continue  # it was found dead meanwhile, and what it had is asked again
            if outcome is None:
                self._bury(preparer)
            else:
                self._epoll.register(preparer.channel, select.EPOLLIN)
                preparer.settle(outcome)

    def _bury(self, preparer: "_Preparer") -> None:
        """Its first request is what it died of. The others, which it had not begun, are asked again."""
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
        """Give each process what it may have."""
        while self._waiting and self._living:
            preparer = min(self._living, key=lambda one: len(one.asked))
            if not preparer.may_take(self._waiting[0]):
                return
            try:
                preparer.ask(self._waiting[0], self._config)
            except OSError:
                self._bury(preparer)
            else:
                preparer.asked.append(self._waiting.popleft())


def _blame() -> MediaError:
    return MediaError(
        f"{TRIES} processes died that prepared its media, which may need more memory than there is. Make them "
        "smaller, or scale images down with prompts.media.max_pixels."
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
        """Return whether it can be sent another request without making the sender wait."""
        size = sum(len(piece) for one in (*self.asked, job) for piece in one.request)
        return not self.asked or (len(self.asked) < self._most_asked and size <= ASKED_BYTES)

    def settle(self, outcome: Outcome | Exception) -> None:
        """Its first request is prepared, or cannot be."""
        if isinstance(outcome, Prepared) and (seconds := outcome.columns.get("media_prepare_s")):
            self._most_asked = min(max(LEAST_ASKED, round(AHEAD_S / seconds)), MOST_ASKED)
        self.asked.popleft().done(outcome)

    def ask(self, job: _Job, config: Any) -> None:
        """Send a request. Raises OSError where the process is dead."""
        if not self._is_configured:
            send(self.channel, pack(config))
            self._is_configured = True
        send(self.channel, job.request)


def keep_memory() -> None:
    """Let freed memory be used again. Given back after each picture, every page is a fault at the next one."""
    with contextlib.suppress(OSError, AttributeError):  # a libc that is not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]


def _serve(channel: socket.socket, order: Open, make_prepare: MakePrepare) -> None:
    """Return the process: prepares what it is sent, until nobody is left to send."""
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
        except Exception:  # an exception of their own, which does not survive the way
            return pack(RuntimeError(f"{type(error).__name__}: {error}"))


def _keep_only(descriptor: int) -> None:
    """Close what was inherited: a pipe or socket that stays open here would hide the end of whom it leads to."""
    for inherited in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if inherited > 2 and inherited != descriptor:
            with contextlib.suppress(OSError):  # the folder's own, closed by now
                os.close(inherited)
