"""baseline: names for runs that later ones are held against.

    python -m flows.baseline pin NAME RUN_ID [--note TEXT] [--force] | list | unpin NAME

No Prefect flow: it is a row of the database, written at once.
"""

import argparse
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from assayline.errors import AssaylineError
from assayline.settings import Settings, load_settings
from assayline.store.baselines import Pin, list_pins, pin_baseline, unpin_baseline
from assayline.store.database import connect

EPILOG = """A spec names its baseline as gate.baseline; `python -m flows.gate` holds runs against it
(docs/comparison.md).

Exit codes: 0 done, 2 a bad name or an unknown run, 6 database or files, 8 a run that is not completed."""


def main(arguments: list[str] | None = None) -> int:
    """Does what the command line says. Returns the exit code."""
    known = _make_parser().parse_args(arguments)
    try:
        work: Callable[[argparse.Namespace, Settings], None] = known.work
        work(known, load_settings())
    except AssaylineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.baseline",
        description="Pin runs as baselines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    pin = commands.add_parser("pin", help="call a run by a name, or give the name to another run", allow_abbrev=False)
    pin.add_argument("name", metavar="NAME")
    pin.add_argument("run_id", metavar="RUN_ID")
    pin.add_argument("--note", metavar="TEXT", help="why, in words")
    pin.add_argument("--force", action="store_true", help="even if the run is not completed")
    pin.set_defaults(work=_pin)
    commands.add_parser("list", help="all names", allow_abbrev=False).set_defaults(work=_list)
    unpin = commands.add_parser("unpin", help="take a name away; the run stays", allow_abbrev=False)
    unpin.add_argument("name", metavar="NAME")
    unpin.set_defaults(work=_unpin)
    return parser


def _pin(known: argparse.Namespace, settings: Settings) -> None:
    with connect(settings.database_path, settings.database_wait_s) as connection:
        before = pin_baseline(connection, settings.data_dir, known.name, known.run_id, known.note, known.force)
    moved = f" It was run {before} before." if before and before != known.run_id else ""
    print(f"Baseline {known.name} is run {known.run_id}.{moved}")


def _list(known: argparse.Namespace, settings: Settings) -> None:
    with connect(settings.database_path, settings.database_wait_s, read_only=True) as connection:
        pins = list_pins(connection)
    if not pins:
        print("No run is pinned. `python -m flows.baseline pin NAME RUN_ID` pins one.")
        return
    Console(width=None if sys.stdout.isatty() else 110).print(_draw_table(pins))


def _draw_table(pins: list[Pin]) -> Table:
    table = Table()
    for name in ("baseline", "run", "pinned at, UTC", "note"):
        table.add_column(name, overflow="fold")
    for pin in pins:
        table.add_row(*(_plain(text) for text in (pin.baseline, pin.run_id, pin.pinned_at, pin.note or "")))
    return table


def _plain(text: str) -> str:
    """Text that is no markup of the terminal's."""
    return text.replace("[", "\\[")


def _unpin(known: argparse.Namespace, settings: Settings) -> None:
    with connect(settings.database_path, settings.database_wait_s) as connection:
        pin = unpin_baseline(connection, settings.data_dir, known.name)
    print(f"Baseline {known.name} is gone; run {pin.run_id} is where it was.")


if __name__ == "__main__":
    sys.exit(main())
