"""worker: answers what a run has to answer, until nothing is left. Started by anything, on any machine.

    assayline worker RUN [--alone]

No Prefect flow, and without Prefect: `srun`, a Kubernetes job, Ray, a shell or the flow itself starts as many of these
as there are devices, and starts a dead one again. All of them see the run's folder, and nothing else.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assayline.errors import AssaylineError, SpecError
from flows.cli.options import make_parser
from flows.cli.process import collect_garbage
from flows.cli.words import complete_run_id

if TYPE_CHECKING:
    from assayline.records import EngineEvent
    from assayline.settings import Settings

EPILOG = """RUN is a run that is under way: its folder, its id in the data folder (ASSAYLINE_DATA_DIR) or in the object
store (ASSAYLINE_DATA_URL), or its URL there, such as s3://bucket/prefix/RUN_ID.

A worker takes a device of its machine, opens an engine and claims shards of the run. It may be started and killed at
any time: what a dead worker had claimed and not stored, others answer while the run goes on (docs/scale.md).

Exit codes: 0 nothing is left to answer, or the run was stopped, 2 spec or setting, 4 model, 5 engine or device,
 6 files, or a folder that is not the run's."""
FLOW_WAIT_S = 60.0


def run(arguments: list[str]) -> int:
    """Works for the run that the command line names. Returns the exit code."""
    parser = make_parser("worker", EPILOG)
    parser.add_argument("run", metavar="RUN", help="folder or URL of a run, or its id")
    parser.add_argument(
        "--alone", action="store_true", help="do not wait for a sign of the run's flow: it has ended, and may return"
    )
    parser.add_argument(
        "--workers-here",
        type=int,
        default=1,
        metavar="N",
        help="how many workers share this machine's cores, where it has no GPUs (default: 1, which takes all)",
    )
    parser.add_argument("--name", help="the worker's name, for a flow that starts it (default: the next that is free)")
    parser.add_argument("--parent", action="store_true", help="speak JSON lines to the process that started this one")
    known = parser.parse_args(arguments)

    from assayline.evaluation.orders import read_order, wait_for_flow
    from assayline.evaluation.worker import run_worker
    from assayline.settings import load_settings

    settings = load_settings()
    settings.pass_on_token()
    say = _speak_to_parent() if known.parent else _print
    try:
        run_dir = find_run_dir(known.run, settings)
        order = read_order(run_dir, settings, known.name, None if known.name or known.parent else known.workers_here)
        if not known.alone:
            wait_for_flow(order.run_dir, FLOW_WAIT_S)
        collect_garbage()
        say("worker", order.worker)
        say("log", f"{order.worker} works for run {order.run_id}")
        report = run_worker(
            order,
            lambda line: say("log", line),
            lambda line: say("engine", line),
            lambda event: say("event", _as_data(event)),
        )
    except AssaylineError as error:
        if known.parent:
            say("error", str(error))
        raise
    say("log", f"{report.worker} answered {report.answered_requests} requests on {report.device}")
    say("report", dataclasses.asdict(report))
    return 0


def find_run_dir(run: str, settings: "Settings") -> Path:
    """The folder of a run that is named by it, by its URL or by its id. Raises SpecError or StoreError."""
    from assayline.places.home import attach_url, open_runs
    from assayline.runs.manifest import find_run

    if "://" in run:
        return attach_url(run, settings.data_dir / "runs")
    if Path(run).is_dir():
        return Path(run)
    if os.sep in run:
        raise SpecError(
            f"There is no folder {run} on this machine. Give the folder of a run that is under way, on a file system "
            "that this machine shares with the run's flow, or its id."
        )
    return find_run(open_runs(settings.data_dir, settings.data_url), complete_run_id(run, settings))


def _print(kind: str, what: Any) -> None:
    from assayline.words import make_visible

    if kind == "log":
        print(make_visible(what), flush=True)


def _speak_to_parent() -> Callable[[str, Any], None]:
    """Lines of JSON on standard output. This process ends with the one that reads them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the flow, which then stops its workers
    out = sys.stdout
    sys.stdout = sys.stderr
    lock = threading.Lock()

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)  # its engine's host sees the closed socket and goes, too

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()

    def say(kind: str, what: Any) -> None:
        with lock:
            print(json.dumps({kind: what}), file=out, flush=True)

    return say


def _as_data(event: "EngineEvent") -> dict[str, Any]:
    return dataclasses.asdict(event)
