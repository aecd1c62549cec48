"""verify: recompute stored metrics and compare them.

    assayline verify [RUN_ID ... | --all] [--repair]

No Prefect flow: it needs only the database.
"""

import random
import time
from functools import partial
from typing import TYPE_CHECKING

from assayline.errors import StoreError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, plain_console, print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from assayline.store.database import Connection, Row
    from assayline.store.thread import DatabaseThread

SAMPLE = 10

EPILOG = f"""First stores missing and outdated metrics: those of killed runs, and of all runs after an update.
Commands that compare runs do this for the runs that they read. If interrupted, it continues where it stopped.

Without RUN_ID and --all, it verifies {SAMPLE} random runs.

Exit codes: 0 no metric differs, 1 some differ, 2 an invalid setting, 6 an unknown run, or a file could not be read
or written."""
PARSER = make_parser("verify", EPILOG)
PARSER.add_argument("run_ids", nargs="*", metavar="RUN_ID", help=f"run id (default: {SAMPLE} random runs)")
PARSER.add_argument("--all", action="store_true", help="verify all runs that have ended")
PARSER.add_argument("--repair", action="store_true", help="replace stored metrics that differ")


def run(arguments: list[str]) -> int:
    """Verify the runs that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if known.run_ids and known.all:
        PARSER.error("pass RUN_IDs or --all, not both")

    from assayline.settings import load_settings
    from assayline.store.metrics import list_unmeasured
    from assayline.store.thread import DatabaseThread

    settings = load_settings()
    settings.need_database()
    database = DatabaseThread(settings)
    asked = [complete_run_id(run_id, settings) for run_id in known.run_ids]
    ended = database.run(_list_ended)
    if unknown := [run_id for run_id in asked if run_id not in ended]:
        raise StoreError(f"No ended run {unknown[0]} in the database. hint: list the runs with `assayline runs`.")
    _each(database, "stored", database.run(partial(list_unmeasured, run_ids=asked or None)), _store)
    wanted = asked or (ended if known.all else random.sample(ended, min(SAMPLE, len(ended))))
    different = _each(database, "verified", wanted, partial(_compare, repair=known.repair))
    if different:
        _show(different)
    print(f"Runs verified: {len(wanted)} of {len(ended)}. Metrics that differ: {len(different)}.")
    return 1 if different else 0


def _each(database: "DatabaseThread", done: str, run_ids: list[str], work: "Callable[..., list[Row]]") -> "list[Row]":
    """Process runs one after another, each in its own connection, so that other processes can use the database."""
    found = []
    for number, run_id in enumerate(run_ids, 1):
        started = time.monotonic()
        found += database.run(partial(work, run_id=run_id))
        print(f"{done} {number}/{len(run_ids)} {run_id}: {time.monotonic() - started:.1f} s", flush=True)
    return found


def _list_ended(connection: "Connection") -> list[str]:
    query = "select run_id from runs where state <> 'running' order by started_at, run_id"
    return [run_id for (run_id,) in connection.execute(query).fetchall()]


def _store(connection: "Connection", run_id: str) -> "list[Row]":
    from assayline.store.metrics import ensure_metrics

    ensure_metrics(connection, [run_id])
    return []


def _compare(connection: "Connection", run_id: str, repair: bool) -> "list[Row]":
    from assayline.store.metrics import list_differences, store_metrics

    different = list_differences(connection, run_id)
    if different and repair:
        store_metrics(connection, [run_id])
    return different


def _show(different: "list[Row]") -> None:
    from assayline.report.document import Column, tabulate
    from assayline.words import show_value

    columns = (
        Column("run", "run_id"),
        Column("metric", "metric"),
        Column("statistic", "statistic"),
        Column("detail", "detail"),
        Column("stored", "stored", show_value),
        Column("computed", "computed", show_value),
    )
    print_table(tabulate("Metrics that differ", columns, different), plain_console())
