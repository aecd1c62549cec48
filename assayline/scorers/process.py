"""Asks a scoring function about answers, in processes that can be killed.

Each process scores one batch after another. One that exceeds the time limit is killed, one that dies is replaced, and
the answers of the failed batch are scored one by one, so that a bad answer costs its own score only.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.functions import SCORERS, Function, find_function
from assayline.spec.criteria import FunctionScorer

START_TIMEOUT_S = 120.0
"""Longest time for importing a function's module."""
MOST_KILLS_IN_A_ROW = 20
"""Batches in a row that may time out or kill their process, before the rest is left unscored."""
MOST_PROCESSES = 4


class ScorerInput(NamedTuple):
    """Arguments of one call of a scoring function."""

    text: str
    target: str | None
    row: dict[str, Any]
    """The row's metadata columns, and its id as `id`."""


class FunctionScore(NamedTuple):
    """Score of an answer by a function."""

    value: float
    extracted: str | None
    explanation: str
    failure: str | None = None
    """Why there is no score, if there is none; the value is then 0."""


class _FailedError(Exception):
    """A batch has no scores. `is_dead`: its process has to be replaced."""

    def __init__(self, reason: str, is_dead: bool) -> None:
        super().__init__(reason)
        self.is_dead = is_dead


def locate(scorer: FunctionScorer) -> Function:
    """The function of a scorer. Raises SpecError."""
    return find_function(scorer.reference, SCORERS)


def define_function(scorer: FunctionScorer) -> str:
    """Digest of the code that decides a scorer's scores, besides its fields. Raises SpecError."""
    with suppress(PackageNotFoundError):
        package = f"{scorer.package} {version(scorer.package)}" if scorer.package else None
        return digest_json({"code": locate(scorer).digest, "package": package})
    raise SpecError(f"{scorer.package}, which the scorer {scorer.title} needs, is not installed. hint: {scorer.hint}.")


def check_function(scorer: FunctionScorer) -> None:
    """Import a scorer's function in a process of its own. Raises SpecError if that fails."""
    function = locate(scorer)
    process = _Process(scorer, function)
    try:
        process.start()
    except _FailedError as error:
        raise SpecError(
            f"scorers: the function {function.reference} of {scorer.title} cannot be used: {error}. "
            f"hint: {scorer.hint or f'it is in {function.file}'}."
        ) from None
    finally:
        process.kill()


def score_answers(scorer: FunctionScorer, answers: Sequence[ScorerInput]) -> list[FunctionScore | None]:
    """One score per answer, in order; None where the function gives none.

    Never raises for what a function does: a failure is a score of 0 that says why. Raises SpecError if there is no such
    function.
    """
    function = locate(scorer)
    scores: list[FunctionScore | None] = [None] * len(answers)
    left: queue.SimpleQueue[range] = queue.SimpleQueue()
    for first in range(0, len(answers), scorer.answers_per_call):
        left.put(range(first, min(first + scorer.answers_per_call, len(answers))))
    kills = _KillCounter()

    def work() -> None:
        process = _Process(scorer, function)
        try:
            while True:
                with suppress(queue.Empty):
                    places = left.get_nowait()
                    for place, score in zip(places, _score_batch(process, kills, answers, places), strict=True):
                        scores[place] = score
                    continue
                return
        finally:
            process.kill()

    batches = -(-len(answers) // scorer.answers_per_call)
    threads = [threading.Thread(target=work) for _ in range(min(MOST_PROCESSES, os.cpu_count() or 1, batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return scores


class _KillCounter:
    """Counts batches in a row that took their process with them."""

    def __init__(self) -> None:
        self._kills = 0
        self.reason: str | None = None
        """Why the rest is not scored, once there were too many."""

    def note(self, failure: _FailedError | None) -> None:
        self._kills = self._kills + 1 if failure and failure.is_dead else 0
        if self._kills >= MOST_KILLS_IN_A_ROW:
            self.reason = f"not scored, after {self._kills} failures in a row: {failure}"


def _score_batch(
    process: "_Process", kills: _KillCounter, answers: Sequence[ScorerInput], places: range
) -> Iterator[FunctionScore | None]:
    if kills.reason is not None:
        yield from (FunctionScore(0.0, None, kills.reason, kills.reason) for _ in places)
        return
    try:
        found = process.ask([answers[place] for place in places])
        kills.note(None)
    except _FailedError as error:
        kills.note(error)
        if len(places) == 1:
            yield FunctionScore(0.0, None, str(error), str(error))
        else:
            for place in places:
                yield from _score_batch(process, kills, answers, range(place, place + 1))
        return
    yield from (None if score is None else FunctionScore(*score) for score in found)


class _Process:
    """One process of a function, started when it is first asked."""

    def __init__(self, scorer: FunctionScorer, function: Function) -> None:
        self._scorer = scorer
        self._function = function
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def ask(self, answers: Sequence[ScorerInput]) -> list[list[Any] | None]:
        """The scores of one batch. Raises _FailedError."""
        if self._child is None:
            self.start()
        return self._exchange(answers, self._scorer.call_timeout_s, "scoring took")

    def start(self) -> None:
        """Import the function. Raises _FailedError."""
        folders = dict.fromkeys([str(Path.cwd()), *filter(None, sys.path)])
        self._child = subprocess.Popen(
            [sys.executable, "-m", "assayline.scorers.host", self._function.reference],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(folders),
            },
            start_new_session=True,
        )
        self._unread = b""
        order = {
            "arguments": self._scorer.call_arguments,
            "batch": self._scorer.answers_per_call,
            "memory_bytes": int(self._scorer.memory_gib * 2**30),
        }
        self._exchange(order, START_TIMEOUT_S, "importing it took")

    def kill(self) -> None:
        """End the process and all that it started."""
        if self._child is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._child = None

    def _exchange(self, value: object, timeout_s: float, what: str) -> list[Any]:
        deadline_s = time.monotonic() + timeout_s
        reason = f"{what} more than {timeout_s:g} s"
        try:
            reply = self._write_and_read(json.dumps(value).encode() + b"\n", deadline_s)
        except (OSError, EOFError) as error:
            if self._child is not None and not isinstance(error, TimeoutError):
                with suppress(subprocess.TimeoutExpired):  # it may have closed its pipe and live on
                    code = self._child.wait(max(0.0, deadline_s - time.monotonic()))
                    reason = f"its process ended with {_name_exit(code)}"
            self.kill()
            raise _FailedError(reason, is_dead=True) from None
        if isinstance(reply, dict):
            raise _FailedError(str(reply["error"]), is_dead=False)
        return list(reply)

    def _write_and_read(self, line: bytes, deadline_s: float) -> Any:
        """Write a line, of any length, and return the value of the one that comes back.

        Raises TimeoutError, OSError or EOFError.
        """
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        into, out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(into, False)
        unsent = memoryview(line)
        while b"\n" not in self._unread:
            poll = select.poll()
            poll.register(out, select.POLLIN)
            if unsent:
                poll.register(into, select.POLLOUT)
            ready = dict(poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000))
            if not ready:
                raise TimeoutError
            if into in ready:
                unsent = unsent[os.write(into, unsent) :]
            if out in ready:
                if not (got := os.read(out, 2**16)):
                    raise EOFError
                self._unread += got
        reply, _, self._unread = self._unread.partition(b"\n")
        return json.loads(reply)


def _name_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
