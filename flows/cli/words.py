"""What the command lines share: fields of a spec as options, and what they print on."""

import difflib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from assayline.errors import SpecError
from assayline.words import make_visible

if TYPE_CHECKING:
    from rich.console import Console

    from assayline.report.document import Table
    from assayline.settings import Settings

CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""Read by Prefect when it is imported, in the processes of several workers as well."""


def plain_console() -> "Console":
    """Where tables go: as wide as the terminal, or a width that a log can have."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def has_bar(settings: "Settings") -> bool:
    """Whether a run shows a bar in place of log lines: where standard error is a terminal that can have one."""
    from rich.console import Console

    return settings.bar and sys.stderr.isatty() and Console(stderr=True).is_interactive


def announce(text: str, settings: "Settings") -> None:
    """Before Prefect is imported: where there is a bar, says what begins, and keeps log lines without need away."""
    from rich.console import Console

    if has_bar(settings):
        os.environ.setdefault(CONSOLE_LEVEL, "WARNING")
        print_text(text, Console(stderr=True))


def print_text(text: str, console: "Console") -> None:
    """Prints a line as it is: names of people's things are no markup, and nothing that a terminal obeys."""
    console.print(make_visible(text), highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_table(table: "Table", console: "Console") -> None:
    """Prints a table as it is. What is too long for its column continues below."""
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid()
    for column in table.columns:
        grid.add_column(
            Text(make_visible(column.header)), justify="right" if column.is_number else "left", overflow="fold"
        )
    for cells in table.cells:
        grid.add_row(*(Text(make_visible(cell)) for cell in cells))
    console.print(grid)


def complete_run_id(given: str, settings: "Settings") -> str:
    """A run's id from its beginning or `last`; as given if no folder has it, which the command itself reports.

    Raises SpecError for a beginning that several runs have.
    """
    from assayline.runs.manifest import list_run_ids, match_run_id

    return match_run_id(given, list_run_ids(settings.data_dir / "runs")) or given


def parse_words(words: list[str], options: Iterable[str] = ()) -> tuple[str | None, dict[str, str]]:
    """The spec's path, if given, and `--field value` or `--field=value` as a mapping.

    `options` are the command's own, as argparse stores them. Raises SpecError for a word that is neither, and for a
    field that is nearly an option.
    """
    known = [f"--{name.replace('_', '-')}" for name in options]
    path: str | None = None
    overrides: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--") and path is None:
            path = word
            continue
        if not word.startswith("--") or word == "--":
            raise SpecError(f"Argument {word!r} was not expected. Fields are given as --field value.")
        field, equals, value = word[2:].partition("=")
        if close := difflib.get_close_matches(f"--{field}", known, n=1, cutoff=0.8):
            raise SpecError(f"There is no option --{field}: did you mean {close[0]}?")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise SpecError(f"--{field} has no value. Expected --{field} VALUE.")
            value = following
        overrides[field] = value
    return path, overrides
