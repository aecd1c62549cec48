"""The command line of a flow: `python -m flows.evaluate SPEC [--field value …] [--fresh] [--resume RUN_ID]`."""

import argparse
import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)
from rich.console import Console

from assayline.errors import AssaylineError, SpecError, StoreError
from assayline.evaluation import RunResult
from assayline.manifest import SPEC_NAME, find_run, read_spec_json
from assayline.resume import AUTO, NEVER, describe_left, find_unfinished_here
from assayline.settings import Settings, load_settings
from assayline.spec import EvalSpec
from assayline.spec_file import load_spec, parse_spec
from flows.dry_run import print_dry_run
from flows.logs import quiet_shutdown
from flows.summary import print_result

USAGE = "python -m flows.evaluate [SPEC] [--resume RUN_ID | --fresh] [--dry-run] [--FIELD VALUE ...]"
EPILOG = """SPEC is a YAML file, such as examples/arithmetic.yaml.

Any field of the spec can be overridden: --prompts.limit 10, --sampling.temperature 0.7,
--engine.args.max_num_seqs 64. Values are YAML. Fields and meanings: docs/spec.md.

A run that was interrupted, failed or was killed goes on when the same command is given again:
what was answered is not asked again (docs/resume.md).

Exit codes: 0 every request has a result or an error row, 2 spec,
 3 prompts, 4 model, 5 engine or device, 6 database or files, 7 run."""


EXIT_HANDLERS_WAIT_S = 20.0
SERVER_START_TIMEOUT_S = 120
HEIR_MARK = "ASSAYLINE_COMMAND"
HEIR = """trap '' INT TERM
cat
for file in $(grep -lzx -- "$1" /proc/[0-9]*/environ 2>/dev/null); do
    process=${file#/proc/}
    process=${process%/environ}
    [ "$process" = "$$" ] || kill "$process"
done"""
_heirs: list["subprocess.Popen[bytes]"] = []
"""Kept for their pipes: a forgotten one would be closed."""
finished: list[RunResult] = []
"""Runs of this process that are stored whole, as the flow notes them: what happens to Prefect after that is no loss."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception: dying of it would leave the in-process server running."""


def run_command(evaluate: Callable[..., dict[str, Any]], arguments: list[str] | None = None) -> int:
    """Runs the flow for a command line and prints its result. Returns the exit code."""
    parser = _make_parser()
    known, rest = parser.parse_known_args(arguments)
    console = plain_console()
    resume: str = NEVER if known.fresh else known.resume or AUTO
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        settings = load_settings()
        path, overrides = parse_words(rest)
        if path is None and known.resume is None:
            parser.error("give a SPEC, or --resume RUN_ID")
        spec = load_spec(path, overrides) if path else read_run_spec(settings, resume, overrides)
        if known.dry_run:
            print_dry_run(spec, settings, resume, console)
            return 0
        start_server()
        result = RunResult(**evaluate(spec, resume))
    except AssaylineError as error:
        quiet_shutdown()
        print(f"error: {error}", file=sys.stderr)
        _say_how_to_go_on(known.fresh)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        quiet_shutdown()
        print("Interrupted; what had finished is stored.", file=sys.stderr)
        _say_how_to_go_on(known.fresh)
        return 143 if isinstance(interrupt, Terminated) else 130
    except Exception as error:
        if not finished:  # a defect of ours, or of what we stand on: all of it is shown
            traceback.print_exc()
            _say_how_to_go_on(known.fresh)
            return 1
        result = finished[-1]
        print(
            f"The run is complete and stored. Prefect could not be told: {type(error).__name__}: {error}. "
            "In its UI the run does not look finished, and its page lacks the metrics.",
            file=sys.stderr,
        )
    quiet_shutdown()
    print_result(result, spec, console)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    """All but SPEC and fields, which are in no fixed place among the options."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.evaluate",
        usage=USAGE,
        description="Evaluate a model on a prompt set.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--resume",
        metavar="RUN_ID",
        help="go on with this run; without SPEC by the run's own spec (default: the newest unfinished one of SPEC)",
    )
    which.add_argument("--fresh", action="store_true", help="start a new run, even if one of this spec is unfinished")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check spec, model and prompts, show the first rendered prompt and which run would go on; generate and "
        "store nothing",
    )
    return parser


def read_run_spec(settings: Settings, run_id: str, overrides: dict[str, str]) -> EvalSpec:
    """The spec that a run has. Raises SpecError for an unknown run, and for overrides, which would change it."""
    if overrides:
        raise SpecError(
            f"--{next(iter(overrides))} was given with --resume {run_id}, but a run goes on with the spec that it has. "
            "Leave the field out, or start a new run with a SPEC."
        )
    run_dir = find_run(settings.data_dir / "runs", run_id)
    return parse_spec(json.loads(read_spec_json(run_dir)), origin=str(run_dir / SPEC_NAME))


def _say_how_to_go_on(fresh: bool) -> None:
    """After an end that is not the last word: the run that this process drove, and how to go on with it."""
    with contextlib.suppress(AssaylineError, OSError):  # it may be the settings or the disk that is wrong
        runs_dir = load_settings().data_dir / "runs"
        if run := find_unfinished_here(runs_dir):
            command = f"python -m flows.evaluate --resume {run.run_id}" if fresh else "the same command"
            left = describe_left(runs_dir / run.run_id, run)
            print(f"Run {run.run_id} is unfinished: {command} goes on with it, {left}.", file=sys.stderr)


def run_and_leave(evaluate: Callable[..., dict[str, Any]]) -> NoReturn:
    """`run_command` for the process's own arguments, then its end."""
    leave_after(lambda: run_command(evaluate))


def say_errors(work: Callable[[], int]) -> int:
    """The exit code of `work`; what a person can act on is a sentence and a code of its own."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        return work()
    except AssaylineError as error:
        quiet_shutdown()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        quiet_shutdown()
        print("Interrupted; what had finished is stored.", file=sys.stderr)
        return 143 if isinstance(interrupt, Terminated) else 130


def plain_console() -> Console:
    """Where tables go: as wide as the terminal, or a width that a log can have."""
    return Console(width=None if sys.stdout.isatty() else 110)


def leave_after(work: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code of `work`, even if what that prints goes nowhere any more."""
    code = 1
    try:
        code = work()
    except SystemExit as wish:  # of argparse
        code = wish.code if isinstance(wish.code, int) else int(wish.code is not None)
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """Ends the process after its exit handlers, without taking the interpreter apart.

    Prefect keeps a failed run's state to the very end, and DuckDB's bindings answer that with pages of leak reports.
    """
    APILogWorker.drain_all(timeout=5)
    handlers = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    handlers.start()
    handlers.join(EXIT_HANDLERS_WAIT_S)  # a pool whose process was killed can wait there for ever
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def start_server() -> None:
    """Starts the in-process server now, if Prefect has no other to talk to; it ends when this process exits.

    A terminal sends Ctrl-C to all of a command's processes. This one inherits that it is blocked: a server that goes
    first keeps the run's end waiting, half a minute of retries long.
    """
    if get_current_settings().api.url is None:
        end_with_this_process()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            patient = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: SERVER_START_TIMEOUT_S}
            with temporary_settings(patient), get_client(sync_client=True) as client:
                os.environ["PREFECT_API_URL"] = str(client.api_url)  # for workers, or each starts one of its own
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise StoreError(
                f"Prefect's temporary server did not start: {reason} Give the same command again, or "
                "start a server with `prefect server start` and set PREFECT_API_URL."
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def end_with_this_process() -> None:
    """A killed process ends nothing, so a shell waits for its end and ends what it had started, known by a mark."""
    mark = f"{HEIR_MARK}={os.getpid()}-{uuid.uuid4().hex}"
    os.environ[HEIR_MARK] = mark.partition("=")[2]
    heir = subprocess.Popen(
        ["/bin/sh", "-c", HEIR, "heir", mark],
        stdin=subprocess.PIPE,  # closed by the kernel when this process is gone
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _heirs.append(heir)


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


def parse_words(words: list[str]) -> tuple[str | None, dict[str, str]]:
    """The spec's path, if given, and `--field value` or `--field=value` as a mapping. Raises SpecError for more."""
    path: str | None = None
    overrides: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--") and path is None:
            path = word
            continue
        if not word.startswith("--") or word == "--":
            raise SpecError(f"Argument {word!r} was not expected. Fields are given as --field value.")
        field, equals, value = word[2:].partition("=")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise SpecError(f"--{field} has no value. Expected --{field} VALUE.")
            value = following
        overrides[field] = value
    return path, overrides
