"""verify: compute stored metrics again and compare.

    assayline verify [RUN_ID ... | --all] [--repair]

No Prefect flow: it needs nothing but the database.
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

EPILOG = f"""First stores what is missing or outdated, of runs that were killed and after an update of assayline.
Commands that compare runs do that themselves, for the runs that they read. Interrupted, it resumes where it stopped.

Without RUN_ID and --all, {SAMPLE} runs are drawn at random.

Exit codes: 0 no metric differs, 1 some do, 2 a wrong setting, 6 an unknown run, or something could not be read or
written."""


def run(arguments: list[str]) -> int:
    """Verifies what the command line names. Returns the exit code."""
    parser = make_parser("verify", EPILOG)
    parser.add_argument("run_ids", nargs="*", metavar="RUN_ID", help=f"id of a run (default: {SAMPLE} runs)")
    parser.add_argument("--all", action="store_true", help="every run that has ended")
    parser.add_argument("--repair", action="store_true", help="replace stored metrics that differ")
    known = parser.parse_args(arguments)
    if known.run_ids and known.all:
        parser.error("give RUN_IDs, or --all")

    from assayline.settings import load_settings
    from assayline.store.metrics import list_unmeasured
    from assayline.store.thread import DatabaseThread

    settings = load_settings()
    settings.need_database()
    database = DatabaseThread(settings)
    asked = [complete_run_id(run_id, settings) for run_id in known.run_ids]
    ended = database.run(_list_ended)
    if unknown := [run_id for run_id in asked if run_id not in ended]:
        raise StoreError(f"There is no run {unknown[0]} that has ended in the database. `from run` lists the runs.")
    _each(database, "stored", database.run(partial(list_unmeasured, run_ids=asked or None)), _store)
    wanted = asked or (ended if known.all else random.sample(ended, min(SAMPLE, len(ended))))
    different = _each(database, "verified", wanted, partial(_compare, repair=known.repair))
    if different:
        _show(different)
    print(f"Runs verified: {len(wanted)} of {len(ended)}. Metrics that differ: {len(different)}.")
    return 1 if different else 0


def _each(database: "DatabaseThread", done: str, run_ids: list[str], work: "Callable[..., list[Row]]") -> "list[Row]":
    """One run after another, each in a connection of its own, so that others get at the database in between."""
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
    from assayline.store.database import transaction
    from assayline.store.metrics import list_differences, store_metrics

    different = list_differences(connection, run_id)
    if different and repair:
        with transaction(connection):
            store_metrics(connection, [run_id])
    return different


def _show(different: "list[Row]") -> None:
    from assayline.report.document import Column, tabulate
    from assayline.words import show_value

    columns = (
        Column("run", "run_id"),
        Column("metric", "metric"),
        Column("statistic", "statistic"),
        Column("of", "detail"),
        Column("stored", "stored", show_value),
        Column("computed", "computed", show_value),
    )
    print_table(tabulate("Metrics that differ", columns, different), plain_console())
