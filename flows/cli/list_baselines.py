"""list baselines: list the pinned baselines.

assayline list baselines
"""

import dataclasses

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import plain_console, print_table
from assayline.report.document import Column, tabulate

EPILOG = """Pin one with `assayline baseline pin NAME RUN_ID` (docs/guides/comparing.md).

Exit codes: 0 listed, 2 an invalid setting, 6 the database cannot be read."""
PARSER = make_parser("list baselines", EPILOG)
PINS = (
    Column("baseline", "baseline"),
    Column("run", "run_id"),
    Column("pinned at (UTC)", lambda pin: pin["pinned_at"][:19]),
    Column("note", lambda pin: pin["note"] or ""),
)


def run(arguments: list[str]) -> int:
    """Print the table. Return the exit code."""
    PARSER.parse_args(arguments)

    from assayline.comparison.baselines import list_pins
    from assayline.settings import load_settings
    from assayline.store.database import connect

    settings = load_settings()
    settings.need_database()
    with connect(settings.database_path, settings.database_wait_s, read_only=True) as connection:
        pins = list_pins(connection)
    if pins:
        print_table(tabulate("Baselines", PINS, map(dataclasses.asdict, pins)), plain_console())
    else:
        print("No run is pinned. hint: pin one with `assayline baseline pin NAME RUN_ID`.")
    return 0
