"""A command's process: signals, Prefect's API, exit.

Prefect is imported lazily, so `--help` and a dry run do not import it.
"""

import atexit
import codecs
import contextlib
import gc
import io
import os
import re
import signal
import sys
import threading
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NoReturn

from assayline.errors import UNEXPECTED_EXIT_CODE, AssaylineError, MachineError, PrefectUnreachableError
from assayline.files import find_obstacle
from assayline.words import LOOPBACK

EXIT_HANDLERS_WAIT_S = 20.0
API_TIMEOUT_S = 15.0
GARBAGE_THRESHOLD = 100_000
"""Allocations between garbage collections. Python's default of 700 adds a fifth to the time of the imports."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
CLOSED_OUTPUT_EXIT_CODE = 141
"""Exit code of a program that SIGPIPE ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that results in progress are stored before the process ends."""


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


PLAIN = str.maketrans({"\u00a0": " ", "–": "-", "−": "-", "→": ">", "×": "x", "µ": "u", "…": ".", "·": "-", "■": "#"})


def _write_plainly(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks: those of our own by similar ones, others by `?`."""
    assert isinstance(error, UnicodeEncodeError), "only writing has replacements"
    plain = error.object[error.start : error.end].translate(PLAIN)
    return plain.encode("ascii", "replace").decode(), error.end


codecs.register_error("plain", _write_plainly)


def leave_after(work: Callable[[], int]) -> NoReturn:
    """Exit the process with the exit code of `work`, even if its output has been closed.

    SIGTERM interrupts the work like Ctrl-C. Characters that the output's encoding lacks are replaced. Garbage
    collection is rare, as imports leave hardly any garbage.
    """
    signal.signal(signal.SIGTERM, _raise_terminated)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="plain")
    bypass_proxies(os.environ)
    gc.set_threshold(GARBAGE_THRESHOLD)
    code = UNEXPECTED_EXIT_CODE
    try:
        code = work()
    except SystemExit as wish:  # argparse's; rich exits with 1 when the reader of the output has closed it
        code = wish.code if isinstance(wish.code, int) else UNEXPECTED_EXIT_CODE
        code = CLOSED_OUTPUT_EXIT_CODE if code == 1 else code
    except BaseException as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
            print(
                f"error: Unexpected {type(error).__name__}, a bug in assayline. hint: report it with the traceback.",
                file=sys.stderr,
            )
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """Run the exit handlers and end the process without tearing down the interpreter.

    Prefect holds a failed run's state until the process exits, and DuckDB's bindings then print pages of leak reports.
    """
    if "prefect.logging.handlers" in sys.modules:
        from prefect.logging.handlers import APILogWorker

        APILogWorker.drain_all(timeout=5)
    handlers = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    handlers.start()
    handlers.join(EXIT_HANDLERS_WAIT_S)  # a library's handler may block forever
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def find_prefect_api(environ: Mapping[str, str]) -> str | None:
    """Return the URL of Prefect's API in the environment or in Prefect's active profile, without importing Prefect."""
    if "PREFECT_API_URL" in environ:
        return environ["PREFECT_API_URL"].strip() or None
    try:
        stored = tomllib.loads((find_prefect_home(environ) / "profiles.toml").read_text(encoding="utf-8"))
        profile = stored["profiles"][environ.get("PREFECT_PROFILE") or stored["active"]]
        return str(profile["PREFECT_API_URL"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_prefect_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of Prefect's profiles and of its temporary server's database."""
    return Path(environ.get("PREFECT_HOME") or os.path.expanduser("~/.prefect"))  # noqa: PTH111 - Path's raises


def bypass_proxies(environ: MutableMapping[str, str]) -> None:
    """Exempt this machine from proxies that are set: Prefect's client would ask them for its temporary server."""
    known = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if known.strip() != "*" and any(name.lower() in PROXIES for name in environ):
        exempt = [host for host in LOOPBACK if host not in known.split(",")]
        environ["no_proxy"] = environ["NO_PROXY"] = ",".join([*filter(None, [known]), *exempt])


@contextlib.contextmanager
def prefect_api() -> Iterator[None]:
    """Run flows inside the context: with the configured API, or else with a temporary server, which Prefect starts.

    Raises PrefectUnreachableError if the API does not answer, before the work or during it, and MachineError if the
    temporary server cannot write its database.
    """
    if find_prefect_api(os.environ) is None:
        if obstacle := find_obstacle(home := find_prefect_home(os.environ)):
            raise MachineError(
                f"Cannot write to Prefect's folder {home}: {obstacle}. hint: set PREFECT_HOME to a writable folder, or "
                "run without --prefect."
            )
        os.environ.pop("PREFECT_API_URL", None)  # an empty value is not an API
    _check_api()
    try:
        yield
    except AssaylineError:
        raise
    except Exception as error:
        _check_api(getattr(error, "__notes__", ()))
        raise


def _check_api(notes: Iterable[str] = ()) -> None:
    """Raise PrefectUnreachableError, with these notes, unless the API answers. Starts the temporary server."""
    from prefect.client.orchestration import get_client
    from prefect.settings import (
        PREFECT_API_REQUEST_TIMEOUT,
        PREFECT_CLIENT_MAX_RETRIES,
        get_current_settings,
        temporary_settings,
    )

    try:
        limits = {PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: API_TIMEOUT_S}
        with temporary_settings(limits), get_client(sync_client=True) as client:
            problem = client.api_healthcheck()
    except ImportError:  # of socksio
        raise
    except Exception as error:  # for example an invalid URL
        problem = error
    if problem is not None:
        reason = next(iter(str(problem).splitlines()), "").rstrip(".") or type(problem).__name__
        sentence = (
            f"Cannot reach Prefect's API at {url}: {reason}. hint: start it with `prefect server start`, correct "
            "PREFECT_API_URL, or unset it to run without Prefect."
            if (url := get_current_settings().api.url)
            else f"Prefect's temporary server does not answer: {reason}. hint: read its output above, or "
            "run without --prefect."
        )
        unreachable = PrefectUnreachableError(re.sub("//[^/@ ]*@", "//", sentence))  # without a password
        for note in notes:
            unreachable.add_note(note)
        raise unreachable from None
