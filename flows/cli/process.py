"""A command's own process: its signals, its Prefect server, its end.

Prefect is imported where it is needed, and not before: `--help` and a dry run do without it.
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
"""Settings under which a server knows no types of blocks, for which it would import every integration there is."""

GARBAGE_THRESHOLD = 100_000
"""New objects until garbage is looked for; Python's 700 take a fifth of the time that imports take."""

CLOSED_OUTPUT_EXIT_CODE = 141
"""As of a program that SIGPIPE ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception: dying of it would lose what is under way."""


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


def leave_after(work: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code of `work`, even if what that prints goes nowhere any more.

    SIGTERM ends the work as Ctrl-C does. Garbage is seldom looked for: imports leave hardly any.
    """
    signal.signal(signal.SIGTERM, _raise_terminated)
    gc.set_threshold(GARBAGE_THRESHOLD)
    code = UNEXPECTED_EXIT_CODE
    try:
        code = work()
    except SystemExit as wish:  # of argparse; 1 is rich's, when what reads the output has closed it
        code = wish.code if isinstance(wish.code, int) else UNEXPECTED_EXIT_CODE
        code = CLOSED_OUTPUT_EXIT_CODE if code == 1 else code
    except BaseException as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
            print(
                f"error: Unexpected {type(error).__name__}, a defect of assayline. hint: report it with the traceback.",
                file=sys.stderr,
            )
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """Ends the process after its exit handlers, without taking the interpreter apart.

    Prefect keeps a failed run's state to the very end, and DuckDB's bindings answer that with pages of leak reports.
    """
    if "prefect.logging.handlers" in sys.modules:
        from prefect.logging.handlers import APILogWorker

        APILogWorker.drain_all(timeout=5)
    handlers = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    handlers.start()
    handlers.join(EXIT_HANDLERS_WAIT_S)  # one of a library may wait forever
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def prefect_api() -> Iterator[None]:
    """Meanwhile Prefect has an API to talk to: the one that is set, or else one in a thread of this process.

    PREFECT_API_URL names it. It ends with this process, however that ends. Prefect's own
    temporary server is a process: it outlives a killed command, and imports again what is imported here.
    An empty PREFECT_API_URL is unset. Raises PrefectUnreachableError if the API that is set does not answer, before
    anything starts or in the middle, and if the temporary server does not start.
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
        refresh_global_settings_context()  # for Prefect's threads, too: they would start a temporary server
        hide_page_links()
        try:
            # A flow's heartbeats tell others that it lives, and its end waits up to a second for their thread.
            # Here nobody looks: this API ends with the flow.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                yield
        finally:
            quiet_shutdown()
            _drain()


def _check_api(notes: Iterable[str] = ()) -> None:
    """Raises PrefectUnreachableError, with these notes, unless the API that is set answers."""
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
    except Exception as error:  # such as a URL that no client takes
        problem = error
    if problem is not None:
        reason = next(iter(str(problem).splitlines()), "").rstrip(".") or type(problem).__name__
        sentence = (
            f"Prefect's API at {get_current_settings().api.url} cannot be reached: {reason}. hint: start it with "
            "`prefect server start`, correct PREFECT_API_URL, or unset it: a server of the command's own is used then."
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
                "Prefect's temporary server did not start; its log is above. hint: give the same command again, or "
                "start a server with `prefect server start` and set PREFECT_API_URL."
            )
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    finally:
        server.should_exit = True
        thread.join(SERVER_END_WAIT_S)


def _drain() -> None:
    """Sends what Prefect still has to send. Left alone, its threads keep trying when the server is gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=SERVER_END_WAIT_S)
    EventsWorker.drain_all(timeout=SERVER_END_WAIT_S)
