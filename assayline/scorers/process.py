"""Asks a scorer's function about answers: assayline's own for a few answers here, all others in processes.

Each process scores one batch after another. One that exceeds the time limit is killed, one that dies is replaced, and
the answers of the failed batch are scored one by one, so that a bad answer costs its own score only.

A target with several right answers (`prompts/targets.py`) is scored by each of them, and the best score counts.
"""

import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from assayline.digests import digest_json
from assayline.errors import PromptError, SpecError
from assayline.functions import SCORERS, Function, find_function
from assayline.prompts.targets import ObjectTarget, read_golds
from assayline.scorers import Score, shorten
from assayline.scorers.host import describe, load_function
from assayline.spec.criteria import FunctionScorer
from assayline.spec.part import ScorerPart

START_TIMEOUT_S = 120.0
"""Longest time for importing a function's module."""
MOST_MEMORY_BYTES = 8 * 2**30
"""Most memory of a process of functions."""
MOST_KILLS_IN_A_ROW = 20
"""Batches in a row that may time out or kill their process, before the rest is left unscored."""
MOST_PROCESSES, MOST_OWN_PROCESSES = 4, 8
"""Processes of a function of the user's, which may need much memory, and of one of assayline's own."""
MOST_HERE = 2_000
"""Answers up to which assayline's own functions score in this process, since starting others takes longer."""


class ScorerInput(NamedTuple):
    """Arguments of one call of a scoring function."""

    text: str | None
    target: str | None
    row: dict[str, Any]
    """The row's metadata columns, and its id as `id`; for a scorer of assayline's own what it needs."""


class _FailedError(Exception):
    """A batch has no scores. `is_dead`: its process has to be replaced."""

    def __init__(self, reason: str, is_dead: bool) -> None:
        super().__init__(reason)
        self.is_dead = is_dead


def locate(scorer: ScorerPart) -> Function:
    """The function of a scorer. Raises SpecError."""
    return find_function(scorer.reference, SCORERS)


def define_function(scorer: FunctionScorer) -> str:
    """Digest of the code that decides a scorer's scores, besides its fields. Raises SpecError."""
    with suppress(PackageNotFoundError):
        package = f"{scorer.package} {version(scorer.package)}" if scorer.package else None
        return digest_json({"code": locate(scorer).digest, "package": package})
    raise SpecError(f"{scorer.package}, which the scorer {scorer.title} needs, is not installed. hint: {scorer.hint}.")


@cache
def read_own_code(module: str) -> dict[str, str]:
    """Return the code that decides the scores of a module of assayline's own, without comments and docstrings."""
    files = {name: Path(__file__).with_name(f"{name}.py") for name in (module, "reading", "__init__")}
    comments = re.compile(r'^\s*("""[\s\S]*?"""|#.*)$', re.MULTILINE)
    return {name: comments.sub("", file.read_text("utf-8")) for name, file in files.items()}


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


UNREAD_TARGET = "^(no number in the target|the target is (none of|empty))"
"""Pattern of the reasons of scores that are 0 for their target, whatever the answer is."""


def check_objects(scorers: Sequence[ScorerPart], targets: Sequence[str | None]) -> None:
    """Raise PromptError if a scorer compares text and a target was an object whose meaning is not known."""
    needy = [scorer.title for scorer in scorers if scorer.needs_target]
    if needy and (objects := [target for target in targets if isinstance(target, ObjectTarget)]):
        raise PromptError(
            f"{needy[0]} compares text, and the target {objects[0]:.100} is an object or a list of them. hint: name a "
            "column with text or a list of texts in prompts.columns.target, or write a scorer of your own."
        )


def check_targets(scorers: Sequence[ScorerPart], targets: Sequence[tuple[str, list[str] | None]]) -> None:
    """Raise PromptError if one of the scorers reads none of these targets, each with the options of its prompt."""
    check_objects(scorers, [target for target, _ in targets])
    for scorer in scorers if targets else ():
        if getattr(scorer, "kind", "") not in ("numeric", "choice", "loglikelihood"):
            continue
        tried = [
            ScorerInput(
                "", target, {"options": options, "option_logprobs": [0.0] * len(options), "option_tokens": None}
            )
            for target, options in ((target, options or []) for target, options in targets)
        ]
        scores = list(score_answers(scorer.model_copy(update={"normalize": "none"}), tried))
        if all(score and re.match(UNREAD_TARGET, score.reason or "") for score in scores):
            raise PromptError(
                f"{scorer.title} reads none of the first {len(targets):,} targets, such as {targets[0][0]!r:.100}. "
                "hint: check prompts.columns.target, or use another scorer."
            )


def score_answers(scorer: ScorerPart, answers: Iterable[ScorerInput]) -> Iterator[Score | None]:
    """Yield one score per answer, in order; None where the function gives none, or lacks the target that it needs.

    Never raises for what a function does: a failure is a score of 0 that says why. Raises SpecError if there is no such
    function. Answers are taken as they are needed, and never all of them held.
    """
    function, answers = locate(scorer), iter(answers)
    is_own = not isinstance(scorer, FunctionScorer)
    first = list(islice(answers, MOST_HERE)) if is_own else []
    kills = _KillCounter()
    if is_own and len(first) < MOST_HERE:
        yield from _score_batch(_Here(scorer, function), kills, first, scorer)
        return
    answers = chain(first, answers)
    processes = [_Process(scorer, function) for _ in range(min(_most_processes(is_own), os.cpu_count() or 1))]
    idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def work(batch: list[ScorerInput]) -> list[Score | None]:
        process = idle.get()
        try:
            return list(_score_batch(process, kills, batch, scorer))
        finally:
            idle.put(process)

    asked: deque[Future[list[Score | None]]] = deque()
    with ThreadPoolExecutor(len(processes)) as threads:
        try:
            while batch := list(islice(answers, scorer.answers_per_message)):
                asked.append(threads.submit(work, batch))
                if len(asked) > 2 * len(processes):
                    yield from asked.popleft().result()
            while asked:
                yield from asked.popleft().result()
        finally:
            for future in asked:
                future.cancel()
            for process in processes:
                process.kill()


def _most_processes(is_own: bool) -> int:
    return MOST_OWN_PROCESSES if is_own else MOST_PROCESSES


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
    asker: "_Here | _Process", kills: _KillCounter, answers: Sequence[ScorerInput], scorer: ScorerPart
) -> Iterator[Score | None]:
    if kills.reason is not None:
        yield from (Score(0.0, None, kills.reason, failure=kills.reason) for _ in answers)
        return
    golds = [_list_targets(one, scorer) for one in answers]
    asked = [
        one._replace(target=gold)
        for one, several in zip(answers, golds, strict=True)
        if not _is_missing(one)
        for gold in several
    ]
    size = scorer.answers_per_message
    try:
        found = [score for start in range(0, len(asked), size) for score in asker.ask(asked[start : start + size])]
        kills.note(None)
    except _FailedError as error:
        kills.note(error)
        if len(answers) == 1:
            yield Score(0.0, None, str(error), failure=str(error))
        else:
            for one in answers:
                yield from _score_batch(asker, kills, [one], scorer)
        return
    scores = iter(found)
    for one, several in zip(answers, golds, strict=True):
        if _is_missing(one) and several:
            yield Score(0.0, None, "no answer")
        else:
            yield _choose_best([next(scores) for _ in several], several)


def _is_missing(one: ScorerInput) -> bool:
    return one.text is None and "options" not in one.row


def _list_targets(one: ScorerInput, scorer: ScorerPart) -> list[str | None]:
    """Return the targets by which an answer is scored, each by one call of the function."""
    if one.target is None:
        return [] if scorer.needs_target else [None]
    golds = read_golds(one.target)
    return ["\n".join(gold or "" for gold in golds)] if scorer.joins_targets else golds


def _choose_best(scores: Sequence[Score | None], golds: Sequence[str | None]) -> Score | None:
    found = [(score, gold) for score, gold in zip(scores, golds, strict=True) if score is not None]
    if len(golds) < 2 or not found:
        return found[0][0] if found else None
    best, gold = max(found, key=lambda pair: (pair[0].value, not re.match(UNREAD_TARGET, pair[0].reason or "")))
    which = f"{shorten(gold or '')}, one of {len(golds)} targets" if best.value else f"none of {len(golds)} targets"
    return best._replace(reason=f"{best.reason}: {which}")


class _Here:
    """Asks a function of assayline's own in this process."""

    def __init__(self, scorer: ScorerPart, function: Function) -> None:
        self._arguments = scorer.call_arguments
        self._function = load_function(function.reference)

    def ask(self, answers: Sequence[ScorerInput]) -> list[Score | None]:
        """The scores of one batch. Raises _FailedError."""
        try:
            return [self._function(*one, **self._arguments) for one in answers]
        except Exception as error:
            raise _FailedError(describe(error), is_dead=False) from None


class _Process:
    """One process of a function, started when it is first asked."""

    def __init__(self, scorer: ScorerPart, function: Function) -> None:
        self._scorer = scorer
        self._function = function
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def ask(self, answers: Sequence[ScorerInput]) -> list[Score | None]:
        """The scores of one batch. Raises _FailedError."""
        if self._child is None:
            self.start()
        found = self._exchange(answers, self._scorer.call_timeout_s, "scoring took")
        return [None if score is None else Score(*score) for score in found]

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
            "memory_bytes": MOST_MEMORY_BYTES,
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
