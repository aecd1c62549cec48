"""A command's process: signals, Prefect server, exit.

Prefect is imported lazily, so `--help` and a dry run do not import it.
"""

import atexit
import contextlib
import gc
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from assayline.errors import UNEXPECTED_EXIT_CODE, AssaylineError, PrefectUnreachableError
from assayline.flows.live.logs import hide_page_links, quiet_shutdown

EXIT_HANDLERS_WAIT_S = 20.0
SERVER_START_TIMEOUT_S = 120.0
SERVER_END_WAIT_S = 5.0
API_TIMEOUT_S = 15.0
NO_BLOCKS = ("PREFECT_SERVER_REGISTER_BLOCKS_ON_START", "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION")
"""Settings that register no block types, so that the server does not import every installed integration."""

GARBAGE_THRESHOLD = 100_000
"""Allocations between garbage collections. Python's default of 700 adds a fifth to the time of the imports."""

CLOSED_OUTPUT_EXIT_CODE = 141
"""Exit code of a program that SIGPIPE ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that results in progress are stored before the process ends."""


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


def leave_after(work: Callable[[], int]) -> NoReturn:
    """Exit the process with the exit code of `work`, even if its output has been closed.

    SIGTERM interrupts the work like Ctrl-C. Garbage collection is rare, as imports leave hardly any garbage.
    """
    signal.signal(signal.SIGTERM, _raise_terminated)
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


@contextlib.contextmanager
def prefect_api() -> Iterator[None]:
    """Provide a Prefect API inside the block: the configured one, or a server in a thread of this process.

    PREFECT_API_URL configures it; an empty value counts as unset. The temporary server ends with this process, however
    that ends. (Prefect's own temporary server is a process: it outlives a killed command and repeats the imports.)
    Raises PrefectUnreachableError if the configured API does not answer, before the work or during it, and if the
    temporary server does not start.
    """
    if not os.environ.get("PREFECT_API_URL", "unset").strip():
        del os.environ["PREFECT_API_URL"]
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings, temporary_settings

    if get_current_settings().api.url:
        _check_api()
        try:
            yield
        except AssaylineError:
            raise
        except Exception as error:
            _check_api(getattr(error, "__notes__", ()))
            raise
        return
    os.environ |= {name: "false" for name in NO_BLOCKS if name not in os.environ}
    refresh_global_settings_context()
    with _serving() as url:
        os.environ["PREFECT_API_URL"] = url
        refresh_global_settings_context()  # for Prefect's threads too: they would start a temporary server
        hide_page_links()
        try:
            # The end of a flow waits up to a second for its heartbeat thread. This API ends with the flow, so nothing
            # reads the heartbeats.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                yield
        finally:
            quiet_shutdown()
            _drain()


def _check_api(notes: Iterable[str] = ()) -> None:
    """Raise PrefectUnreachableError, with these notes, unless the configured API answers."""
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
    except Exception as error:  # for example an invalid URL
        problem = error
    if problem is not None:
        reason = next(iter(str(problem).splitlines()), "").rstrip(".") or type(problem).__name__
        sentence = (
            f"Cannot reach Prefect's API at {get_current_settings().api.url}: {reason}. hint: start it with "
            "`prefect server start`, correct PREFECT_API_URL, or unset it to use a temporary server."
        )
        unreachable = PrefectUnreachableError(re.sub("//[^/@ ]*@", "//", sentence))  # without a password
        for note in notes:
            unreachable.add_note(note)
        raise unreachable from None


@contextlib.contextmanager
def _serving() -> Iterator[str]:
    import uvicorn
    from prefect.server.api.server import create_app

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(ephemeral=True, final=True), log_level="error", lifespan="on", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="prefect-server", daemon=True)
    thread.start()
    deadline = time.monotonic() + SERVER_START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise PrefectUnreachableError(
                "Prefect's temporary server did not start; its log is above. hint: rerun the command, or "
                "start a server with `prefect server start` and set PREFECT_API_URL."
            )
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    finally:
        server.should_exit = True
        thread.join(SERVER_END_WAIT_S)


def _drain() -> None:
    """Flush Prefect's queues. Otherwise its threads keep retrying after the server has stopped."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=SERVER_END_WAIT_S)
    EventsWorker.drain_all(timeout=SERVER_END_WAIT_S)
