"""The host's end of the channel to its worker, used without threads that wait on it.

A thread that waits for messages takes Python's lock from the engine several times per message. Here the engine's own
thread reads messages between two steps, and writes as much as the socket takes at once; a thread writes only the rest
that a slow worker leaves unread. When the worker is gone, however it died, the first thread that notices kills the
whole process group.
"""

import contextlib
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections import deque
from typing import Any, NoReturn

from assayline.engines.messages import CHUNK_BYTES, cut_frames, pack


class Channel:
    """Messages from and to a worker, and to this process's own engine from its other threads."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # A process that vLLM forks would keep it open and hide the death of this one.
        os.register_at_fork(after_in_child=self._socket.close)
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._arrived, self._unsent = bytearray(), bytearray()
        self._own: deque[Any] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_flushing = False
        self._watched: set[int] = set()
        self._poll = select.poll()
        for descriptor in (self._socket.fileno(), self._wake):
            self._poll.register(descriptor, select.POLLIN)
        threading.Thread(target=end_with_worker, args=[self._socket.fileno()], name="end", daemon=True).start()

    def fileno(self) -> int:
        """Return the socket's descriptor, for an event loop that waits for messages."""
        return self._socket.fileno()

    def watch(self, descriptor: int) -> None:
        """Let `take` also return, even without a message, when this descriptor can be read."""
        self._watched.add(descriptor)
        self._poll.register(descriptor, select.POLLIN)

    def take(self, *, wait: bool) -> list[Any]:
        """Return the messages in order; with `wait`, at least one, unless a watched descriptor can be read."""
        while True:
            while self._read():
                pass
            messages = [pickle.loads(content) for content in self._cut()]
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while self._own:
                messages.append(self._own.popleft())
            if messages or not wait:
                return messages
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            wait = self._watched.isdisjoint(ready)

    def put(self, message: Any) -> None:
        """Send a message, from any thread, without waiting."""
        frame = pack(message)
        with self._writing:
            self._unsent += frame
            self._send()
            if self._unsent and not self._is_flushing:
                self._is_flushing = True
                threading.Thread(target=self._flush, name="flush", daemon=True).start()

    def put_own(self, message: Any) -> None:
        """Hand a message to `take`, from another thread of this process."""
        self._own.append(message)
        os.eventfd_write(self._wake, 1)

    def read_ahead(self) -> None:
        """Read for a busy engine, in another thread: a worker whose messages are not read cannot go on."""
        has_read = False
        while self._read():
            has_read = True
        if has_read:
            os.eventfd_write(self._wake, 1)

    def close(self, timeout_s: float) -> None:
        """Wait until all is sent."""
        deadline = time.monotonic() + timeout_s
        while self._unsent and time.monotonic() < deadline:
            time.sleep(0.01)

    def _read(self) -> bool:
        """Read once. Returns whether anything came."""
        with self._reading:
            try:
                content = self._socket.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                end_group()
            if not content:
                end_group()
            self._arrived += content
            return True

    def _cut(self) -> list[bytes]:
        """Return the complete frames that have arrived."""
        with self._reading:
            return cut_frames(self._arrived)

    def _send(self) -> None:
        try:
            while self._unsent:
                count = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
                del self._unsent[:count]
        except BlockingIOError:
            return
        except OSError:
            end_group()

    def _flush(self) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLOUT)
        while True:
            poll.poll()
            with self._writing:
                self._send()
                if not self._unsent:
                    self._is_flushing = False
                    return


def end_with_worker(descriptor: int) -> None:
    """Wait until the other end of a socket is gone, then kill this process group."""
    gone = select.poll()
    gone.register(descriptor, select.POLLRDHUP)
    gone.poll()
    end_group()


def end_group() -> NoReturn:
    """Kill this process and all that it started: nothing waits for their results."""
    os.killpg(0, signal.SIGKILL)
    raise SystemExit
