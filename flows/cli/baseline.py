"""baseline: pin names to the runs that later runs are compared with.

    assayline baseline pin NAME RUN_ID [--note TEXT] [--force] | unpin NAME

No Prefect flow: a pin is one row of the database.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, print_text

if TYPE_CHECKING:
    from assayline.settings import Settings

EPILOG = """A spec names its baseline as gate.baseline; `assayline gate` compares runs with it
(docs/guides/comparing.md).

Exit codes: 0 done, 2 invalid name or unknown run, 6 database or files, 8 the run is not completed."""


def _pin(known: argparse.Namespace, settings: "Settings") -> None:
    from assayline.comparison.baselines import pin_baseline
    from assayline.comparison.queries import say_few_repeats, say_selected
    from assayline.store.thread import DatabaseThread

    run_id = complete_run_id(known.run_id, settings)
    database = DatabaseThread(settings)
    before = database.run(
        lambda connection: pin_baseline(connection, settings.data_dir, known.name, run_id, known.note, known.force)
    )
    moved = f" (was run {before})" if before and before != run_id else ""
    print_text(f"Pinned baseline {known.name} to run {run_id}{moved}.")
    for doubt in database.run(lambda opened: (say_few_repeats(opened, run_id), say_selected(opened, run_id))):
        if doubt:
            print_text(f"warning: {doubt}")


def _unpin(known: argparse.Namespace, settings: "Settings") -> None:
    from assayline.comparison.baselines import unpin_baseline
    from assayline.store.thread import DatabaseThread

    pin = DatabaseThread(settings).run(lambda opened: unpin_baseline(opened, settings.data_dir, known.name))
    print_text(f"Unpinned baseline {known.name}; run {pin.run_id} is kept.")


PARSER = make_parser("baseline", EPILOG)
commands = PARSER.add_subparsers(required=True, metavar="COMMAND")
pin = commands.add_parser("pin", help="pin a name to a run, or move it to another run", allow_abbrev=False)
pin.add_argument("name", metavar="NAME")
pin.add_argument("run_id", metavar="RUN_ID")
pin.add_argument("--note", metavar="TEXT", help="reason for the pin")
pin.add_argument("--force", action="store_true", help="pin a run that is not completed")
pin.set_defaults(work=_pin)
unpin = commands.add_parser("unpin", help="remove a name; the run is kept", allow_abbrev=False)
unpin.add_argument("name", metavar="NAME")
unpin.set_defaults(work=_unpin)


def run(arguments: list[str]) -> int:
    """Pin or unpin, as the command line asks. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.settings import load_settings

    work: Callable[[argparse.Namespace, Settings], None] = known.work
    work(known, load_settings())
    return 0
