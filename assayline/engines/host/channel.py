"""The host's end of the channel to its worker, used without threads that wait on it.

A thread that waits for messages takes Python's lock from the engine several times per message. Here the engine's own
thread reads messages between two steps, and writes as much as the socket takes at once; a thread writes only the rest
that a slow worker leaves unread. When the worker is gone, however it died, the first thread that notices kills the
whole process group.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from typing import Any, NoReturn

from assayline.engines.messages import Channel


class HostChannel(Channel):
    """Messages from and to a worker, and to this process's own engine from its other threads."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(socket.socket(fileno=descriptor))
        # A process that vLLM forks would keep it open and hide the death of this one.
        os.register_at_fork(after_in_child=self.close)
        self._writing = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_flushing = False
        self._poll = select.poll()
        for one in (descriptor, self._wake):
            self._poll.register(one, select.POLLIN)
        threading.Thread(target=end_with_worker, args=[descriptor], name="end", daemon=True).start()

    def fileno(self) -> int:
        """Return the socket's descriptor, for an event loop that waits for messages."""
        return self._socket.fileno()

    def take(self, *, wait: bool) -> list[Any]:
        """Return the messages in order; with `wait`, at least one."""
        while True:
            while self._read():
                pass
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            messages = [self._messages.popleft() for _ in range(len(self._messages))]
            if messages or not wait:
                return messages
            self._poll.poll()

    def send(self, message: Any) -> None:
        """Send a message, from any thread, without waiting."""
        with self._writing:
            super().send(message)
            if self._unsent and not self._is_flushing:
                self._is_flushing = True
                threading.Thread(target=self._send_rest, name="flush", daemon=True).start()

    def put_own(self, message: Any) -> None:
        """Hand a message to `take`, from another thread of this process."""
        self._messages.append(message)
        os.eventfd_write(self._wake, 1)

    def drain(self, timeout_s: float) -> None:
        """Wait until all is sent."""
        deadline = time.monotonic() + timeout_s
        while self._unsent and time.monotonic() < deadline:
            time.sleep(0.01)

    def _read(self) -> bool:
        try:
            return super()._read()
        except (EOFError, OSError):
            end_group()

    def _flush(self) -> None:
        try:
            super()._flush()
        except OSError:
            end_group()

    def _send_rest(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while self._is_flushing:
            poll.poll()
            with self._writing:
                self._flush()
                self._is_flushing = bool(self._unsent)


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
