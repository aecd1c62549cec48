"""keep: compute the metrics of runs and store them, for after an update of assayline changed how they are computed.

    assayline keep RUN_ID... | --all

A run's end stores its own metrics. No Prefect flow: it needs nothing but the database.
"""

import time
from functools import partial
from typing import TYPE_CHECKING

from assayline.errors import StoreError
from flows.cli.options import make_parser
from flows.cli.words import complete_run_id

if TYPE_CHECKING:
    from assayline.store.database import Connection
    from assayline.store.thread import DatabaseThread

EPILOG = """Commands that compare runs compute missing metrics themselves. For a thousand runs that takes minutes;
this command does it ahead of time and shows its progress. Interrupted, it resumes where it stopped.

Exit codes: 0 all of them are stored, 2 a wrong setting, 6 an unknown run, or something could not be read or written."""


def run(arguments: list[str]) -> int:
    """Keeps what the command line names. Returns the exit code."""
    parser = make_parser("keep", EPILOG)
    parser.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="id of a run: computed anew")
    parser.add_argument(
        "--all", action="store_true", help="every run that has ended and whose metrics are missing or outdated"
    )
    known = parser.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        parser.error("give RUN_IDs, or --all")

    from assayline.settings import load_settings
    from assayline.store.metrics import list_unmeasured
    from assayline.store.thread import DatabaseThread

    settings = load_settings()
    settings.need_database()
    database = DatabaseThread(settings)
    run_ids = [complete_run_id(run_id, settings) for run_id in known.run_ids]
    return _keep_all(database, run_ids or database.run(list_unmeasured))


def _keep_all(database: "DatabaseThread", run_ids: list[str]) -> int:
    """One run after another, each in a connection of its own, so that others get at the database in between."""
    for number, run_id in enumerate(run_ids, 1):
        started = time.monotonic()
        database.run(partial(_store, run_id=run_id))
        print(f"{number}/{len(run_ids)} {run_id}: {time.monotonic() - started:.1f} s", flush=True)
    if not run_ids:
        print("Nothing to do: the metrics of every run that has ended are stored.")
    return 0


def _store(connection: "Connection", run_id: str) -> None:
    from assayline.store.database import transaction
    from assayline.store.metrics import store_metrics

    if not connection.execute("select 1 from runs where run_id = ?", [run_id]).fetchall():
        raise StoreError(f"There is no run {run_id} in the database. `from runs` lists those that there are.")
    with transaction(connection):
        store_metrics(connection, [run_id])
