"""Runs commands while their output is read as it comes; the output is kept in memory, as the disk may be full."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

PAUSE_S = 0.2


class Command:
    """A process whose output, both streams in one, can be read at any time."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], keep_open: Sequence[int] = ()) -> None:
        self._memory = os.memfd_create("output", 0)
        self.process = subprocess.Popen(
            arguments,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._memory,
            stderr=subprocess.STDOUT,
            pass_fds=keep_open,
            start_new_session=True,  # a group of its own, to be ended with all its children
        )

    def read_output(self) -> str:
        """All that was written so far."""
        return os.pread(self._memory, os.fstat(self._memory).st_size, 0).decode(errors="replace")

    def poll(self) -> int | None:
        """Its exit code, or nothing where it still runs after a short wait."""
        try:
            return self.process.wait(PAUSE_S)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Ends it and its children if it runs, and gives its memory back."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # half an installation is made anew, however it ended
            self.process.wait()
        os.close(self._memory)


def run(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    keep_open: Sequence[int] = (),
    show: Callable[[str], None] = lambda output: None,
) -> tuple[int, str]:
    """Exit code and output of one command. `show` is given the output from time to time."""
    command = Command(arguments, environ, keep_open)
    try:
        while (code := command.poll()) is None:
            show(command.read_output())
        return code, command.read_output()
    finally:
        command.stop()


class StatusLine:
    """One line that is written over in a terminal; elsewhere a new line when it changed, ten seconds apart."""

    def __init__(self, prefix: str, every_s: float = 10) -> None:
        self._prefix = prefix
        self._every_s = every_s
        self._started = self._last = time.monotonic()
        self._shown = ""
        self._terminal = sys.stdout.isatty()

    def show(self, text: str) -> None:
        """Shows how far it is."""
        now = time.monotonic()
        if self._terminal:
            line = f"{self._prefix}: {now - self._started:3.0f} s  {text}"[: _columns() - 1]
            if line != self._shown:
                print(f"\r\x1b[K{line}", end="", flush=True)
                self._shown = line
        elif text != self._shown and now - self._last >= self._every_s:
            print(f"{self._prefix}: {now - self._started:3.0f} s  {text}", flush=True)
            self._shown, self._last = text, now

    def clear(self) -> None:
        """Leaves an empty line to write on."""
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", flush=True)
            self._shown = ""


def _columns() -> int:
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 40)
    except OSError:
        return 80
