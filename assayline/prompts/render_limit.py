"""A clock and a scale beside whatever renders a template: one that runs on and on, or collects memory, is stopped.

A template is a program, and a model's chat template is a foreign one. Its loops can be nested and its macros can call
themselves, so nothing that is counted before it runs tells how long it will. A thread looks four times a second at the
templates that are being rendered, and raises RenderStoppedError inside the one that is over a limit: CPython's own way
to interrupt another thread (`PyThreadState_SetAsyncExc`), as signals reach the main thread only, which this is not.
It is raised between two steps of Python, so one long step in C is out of its reach; `sandbox.py` refuses those.

    guard = RenderGuard("prompts.template")
    text = guard.run(lambda: template.render(row))
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

from assayline.errors import PromptError
from assayline.prompts.row import RowError

Made = TypeVar("Made")

MOST_SECONDS = 10.0
"""A prompt takes less than a millisecond, one of megabytes less than a second."""
MOST_BYTES = 2**30
"""How much larger the process may become while one prompt renders; looked at where that takes over LOOK_INTERVAL_S."""
LOOK_INTERVAL_S = 0.25
MOST_TRIES = 40
"""How often it is raised: there are steps in which an exception is lost."""
MOST_STOPPED = 3
"""Prompts that may be stopped before the run is: with a million of them it would take months."""


class RenderStoppedError(Exception):
    """A template went over a limit."""

    def __init__(self) -> None:
        super().__init__(f"took more than {MOST_SECONDS:g} s or {MOST_BYTES // 2**20} MiB and was stopped")


class RenderGuard:
    """Renders one template for one prompt after another, within limits."""

    def __init__(self, name: str) -> None:
        """`name` is what messages call the template."""
        self._name = name
        self._stopped = 0

    def run(self, render: Callable[[], Made]) -> Made:
        """What `render` returns. Raises RowError if it was stopped, PromptError when that happens too often."""
        try:
            return render_limited(render)
        except RenderStoppedError as error:
            self._stopped += 1
            if self._stopped < MOST_STOPPED:
                raise RowError("template_error", f"{self._name} {error}.") from None
            raise PromptError(
                f"{self._name} {error}, {self._stopped} times by now. Look for loops in it that do not end, or take "
                "out the rows that are too large for it."
            ) from None


@dataclass(slots=True, eq=False)
class _Rendering:
    """One template that is being rendered."""

    thread_id: int
    started_s: float
    first_bytes: int | None = None
    tries: int = 0


def render_limited(render: Callable[[], Made]) -> Made:
    """What `render` returns. Raises RenderStoppedError if it went over a limit, whatever became of the interruption:
    Jinja, for example, fails in rewriting its traceback when it comes between two lines."""
    rendering = _Rendering(threading.get_ident(), time.monotonic())
    try:
        try:
            _begin(rendering)
            made = render()
        finally:
            while True:
                try:
                    _end(rendering)
                    break
                except RenderStoppedError:
                    pass  # it was raised here, when all was over
    except Exception:
        if rendering.tries:
            raise RenderStoppedError from None
        raise
    if rendering.tries:
        raise RenderStoppedError
    return made


_LOCK = threading.Lock()
_RENDERINGS: set[_Rendering] = set()
_WATCHERS: list[threading.Thread] = []


def _begin(rendering: _Rendering) -> None:
    with _LOCK:
        if not _WATCHERS or not _WATCHERS[-1].is_alive():  # the first time, or the first time after a fork
            _WATCHERS.append(threading.Thread(target=_look_forever, name="render-limit", daemon=True))
            _WATCHERS[-1].start()
        _RENDERINGS.add(rendering)


def _end(rendering: _Rendering) -> None:
    with _LOCK:
        _RENDERINGS.discard(rendering)
        if rendering.tries:
            _raise_in(rendering.thread_id, None)


def _look_forever() -> None:
    process = psutil.Process()
    while True:
        time.sleep(LOOK_INTERVAL_S)
        with _LOCK:
            for rendering in _RENDERINGS:
                _look(rendering, process.memory_info().rss)


def _look(rendering: _Rendering, process_bytes: int) -> None:
    if rendering.first_bytes is None:
        rendering.first_bytes = process_bytes
    is_long = time.monotonic() - rendering.started_s > MOST_SECONDS
    if (is_long or process_bytes - rendering.first_bytes > MOST_BYTES) and rendering.tries < MOST_TRIES:
        rendering.tries += 1
        _raise_in(rendering.thread_id, RenderStoppedError)


def _raise_in(thread_id: int, error: type[Exception] | None) -> None:
    """Raises an exception in a thread at its next step; None takes back one that has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if error is None else ctypes.py_object(error)
    )
