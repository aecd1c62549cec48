"""The command line of a flow: `python -m flows.evaluate SPEC [--field value …] [--dry-run]`."""

import argparse
import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogWorker
from prefect.settings import get_current_settings
from rich.console import Console

from assayline.errors import AssaylineError, SpecError
from assayline.evaluation import RunResult
from assayline.spec import EvalSpec
from assayline.spec_file import load_spec
from flows.dry_run import print_dry_run
from flows.logs import quiet_shutdown
from flows.summary import print_result

EPILOG = """Any field of the spec can be overridden: --prompts.limit 10, --sampling.temperature 0.7,
--engine.args.max_num_seqs 64. Values are YAML. Fields and meanings: docs/spec.md.
Exit codes: 0 every request has a result or an error row, 2 spec,
 3 prompts, 4 model, 5 engine or device, 6 database, 7 run."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception: dying of it would leave the in-process server running."""


def run_command(evaluate: Callable[[EvalSpec], dict[str, Any]], arguments: list[str] | None = None) -> int:
    """Runs the flow for a command line and prints its result. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.evaluate",
        description="Evaluate a model on a prompt set.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("spec", help="YAML file, such as examples/arithmetic.yaml")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check spec, model and prompts, show the first rendered prompt, generate nothing",
    )
    known, rest = parser.parse_known_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        spec = load_spec(known.spec, parse_overrides(rest))
        if known.dry_run:
            print_dry_run(spec, console)
            return 0
        start_server()
        result = RunResult(**evaluate(spec))
    except AssaylineError as error:
        quiet_shutdown()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        quiet_shutdown()
        print("Interrupted; what had finished is stored.", file=sys.stderr)
        return 143 if isinstance(interrupt, Terminated) else 130
    quiet_shutdown()
    print_result(result, spec, console)
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process after its exit handlers, without taking the interpreter apart.

    Prefect keeps a failed run's state to the very end, and DuckDB's bindings answer that with pages of leak reports.
    """
    APILogWorker.drain_all(timeout=5)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_server() -> None:
    """Starts the in-process server now, if Prefect has no other to talk to; it ends when this process exits.

    A terminal sends Ctrl-C to all of a command's processes. This one inherits that it is blocked: a server that goes
    first keeps the run's end waiting, half a minute of retries long.
    """
    if get_current_settings().api.url is None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with get_client(sync_client=True) as client:
                os.environ["PREFECT_API_URL"] = str(client.api_url)  # for workers, or each starts one of its own
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


def parse_overrides(rest: list[str]) -> dict[str, str]:
    """`--field value` and `--field=value` as a mapping. Raises SpecError for anything else."""
    overrides: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        if not word.startswith("--") or word == "--":
            raise SpecError(f"Argument {word!r} was not expected. Fields are given as --field value.")
        field, equals, value = word[2:].partition("=")
        if not equals:
            following = next(words, None)
            if following is None:
                raise SpecError(f"--{field} has no value. Expected --{field} VALUE.")
            value = following
        overrides[field] = value
    return overrides
