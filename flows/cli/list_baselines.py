"""list baselines: list the pinned baselines, or all pins of one name.

assayline list baselines [NAME]
"""

import dataclasses

from assayline.errors import SpecError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import print_table
from assayline.report.document import Column, tabulate

EPILOG = """Pin one with `assayline baseline pin NAME RUN_ID` (docs/guides/comparing.md). With NAME, its pins
are read from the folders of the runs, newest first.

Exit codes: 0 listed, 2 an unknown name or an invalid setting, 6 the database cannot be read."""
PARSER = make_parser("list baselines", EPILOG)
PARSER.add_argument("name", nargs="?", metavar="NAME", help="print when this name was pinned to which run, and by whom")
PINS = (
    Column("baseline", "baseline"),
    Column("run", "run_id"),
    Column("pinned at (UTC)", lambda pin: pin["pinned_at"][:19]),
    Column("by", lambda pin: pin["pinned_by"] or ""),
    Column("note", lambda pin: pin["note"] or ""),
)
PAST = (
    Column("run", "run_id"),
    Column("action", "decision"),
    Column("at (UTC)", lambda row: row[f"{row['decision']}ned_at"][:19]),
    Column("by", lambda row: row.get(f"{row['decision']}ned_by") or ""),
    Column("note", lambda row: row.get("note") or ""),
)


def run(arguments: list[str]) -> int:
    """Print the table. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.comparison.baselines import list_past_pins, list_pins
    from assayline.settings import load_settings
    from assayline.store.database import connect

    settings = load_settings()
    if known.name:
        past = list_past_pins(settings.data_dir / "runs", known.name)
        if not past:
            raise SpecError(
                f"No run has been pinned as {known.name!r}. hint: `assayline list baselines` lists the names."
            )
        print_table(tabulate(f"Pins of {known.name}", PAST, past))
        return 0
    settings.need_database()
    with connect(settings.database_path, settings.database_wait_s, read_only=True) as connection:
        pins = list_pins(connection)
    if pins:
        print_table(tabulate("Baselines", PINS, map(dataclasses.asdict, pins)))
    else:
        print("No run is pinned. hint: pin one with `assayline baseline pin NAME RUN_ID`.")
    return 0
