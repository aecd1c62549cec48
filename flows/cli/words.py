"""Helpers of the command lines: spec fields as options, consoles and tables."""

import difflib
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.errors import SpecError
from assayline.words import SPACE, count, make_visible

if TYPE_CHECKING:
    from rich.console import Console

    from assayline.report.document import Document, Table
    from assayline.settings import Settings
    from assayline.store.manifest import Manifest

ID_CHARACTERS = 48
"""Width up to which tables keep a name or an id on one line."""
AGES_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


def plain_console() -> "Console":
    """Return the console for tables: as wide as the terminal, or 110 columns without one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def has_bar(settings: "Settings") -> bool:
    """Return True if a run shows a progress bar instead of log lines: when stderr is an interactive terminal."""
    from rich.console import Console

    return settings.bar and sys.stderr.isatty() and Console(stderr=True).is_interactive


def print_text(text: str, console: "Console | None" = None) -> None:
    """Print a line literally: no markup, and control characters made visible."""
    (console or plain_console()).print(
        make_visible(text).replace(SPACE, " "), highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def print_page(document: "Document", *sections: str, newest: int | None = None) -> None:
    """Print the tables of these sections of a page, at most `newest` rows of each, and its headline."""
    from assayline.report.document import Table

    blocks = [block for section in document.sections if section.key in sections for block in section.blocks]
    tables = [block for block in blocks if isinstance(block, Table)]
    for table in tables:
        if len(tables) > 1:
            print_text(table.caption)
        print_table(replace(table, cells=table.cells[:newest]))
        if newest and (more := len(table.cells) - newest) > 0:
            print_text(f"{count(more, 'earlier run is', 'earlier runs are')} in the report.")
    for sentence in document.headline:
        print_text(sentence)


def print_table(table: "Table") -> None:
    """Print a table literally, without wide columns. Long cells are folded, but not names and ids, which are copied.

    If its words do not fit the console, each row is a list of its cells.
    """
    from rich.cells import cell_len
    from rich.table import Table as Grid
    from rich.text import Text

    console = plain_console()
    kept = [i for i, column in enumerate(table.columns) if not column.is_wide]
    columns = [table.columns[i] for i in kept]
    texts = [[make_visible(column.header) for column in columns]]
    texts += [[make_visible(row[i]) for i in kept] for row in table.cells]
    words = [
        [word for text in cells for word in ([text] if column.style == "name" else text.split())]
        for column, cells in zip(columns, zip(*texts, strict=True), strict=True)
    ]
    widths = [max((cell_len(word) for word in column if len(word) <= ID_CHARACTERS), default=1) for column in words]
    wanted = [max(map(cell_len, cells)) for cells in zip(*texts, strict=True)]
    spare = console.width - sum(widths) - 3 * len(widths) - 1
    if spare < 0 and len(widths) > 1:
        for row in texts[1:]:
            for header, cell in zip(texts[0], row, strict=True):
                print_text(f"{header:{max(map(len, texts[0]))}}  {cell}")
            print_text("")
        return
    while spare > 0 and widths != wanted:
        place = max(range(len(widths)), key=lambda place: wanted[place] - widths[place])
        if wanted[place] <= widths[place]:
            break
        widths[place] += 1
        spare -= 1
    grid = Grid()
    for header, column, width in zip(texts[0], columns, widths, strict=True):
        grid.add_column(Text(header), justify="right" if column.is_number else "left", width=width, overflow="fold")
    for row in texts[1:]:
        grid.add_row(*map(Text, row))
    console.print(grid)


def complete_run_id(given: str, settings: "Settings") -> str:
    """Resolve a run id from its prefix or `last`. Return it unchanged if no folder matches; the command reports that.

    Print which run is the last, and its state unless it ended well. Raises SpecError for an ambiguous prefix.
    """
    from assayline.store.manifest import ENDED_WELL, LAST, list_manifests, list_run_ids, match_run_id

    runs_dir = settings.data_dir / "runs"
    if given != LAST:
        return match_run_id(given, list_run_ids(runs_dir)) or given
    found = list_manifests(runs_dir)
    if not found:
        return given
    newest, *others = found
    words = f"The last run is {newest.run_id}"
    if newest.state not in ENDED_WELL:
        ended = next((run.run_id for run in others if run.state in ENDED_WELL), None)
        before = f", and the last completed one {ended}" if ended else ""
        words += f", whose state is {name_run_state(newest, runs_dir)}{before}"
    print(f"{words}.", file=sys.stderr)
    return newest.run_id


def name_run_state(run: "Manifest", runs_dir: Path) -> str:
    """Return the state of a run; `interrupted` for a killed one."""
    from assayline.store.locks import is_worked_on

    return "interrupted" if run.state == "running" and not is_worked_on(runs_dir / run.run_id) else run.state


def parse_age(text: str) -> int | None:
    """Return the seconds of an age such as 48h, 90d or 12w; None for another text."""
    age = re.fullmatch(r"(\d+)([hdw])", text)
    return int(age[1]) * AGES_S[age[2]] if age else None


def parse_words(words: list[str], options: Iterable[str] = ()) -> tuple[str | None, dict[str, str]]:
    """Return the path of the spec, if given, and the fields `--field value` or `--field=value` as a mapping.

    `options` are the command's own, as argparse stores them. Raises SpecError for any other argument, and for a
    field that resembles an option.
    """
    from assayline.spec.evaluation import EvalSpec

    known = [f"--{name.replace('_', '-')}" for name in options]
    path: str | None = None
    overrides: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--") and path is None:
            path = word
            continue
        if not word.startswith("--") or word == "--":
            raise SpecError(f"Unexpected argument {word!r}. hint: pass fields as --field value.")
        field, equals, value = word[2:].partition("=")
        close = difflib.get_close_matches(f"--{field}", known, n=1, cutoff=0.8)
        if close and field not in EvalSpec.model_fields:
            raise SpecError(f"Unknown option --{field}. hint: did you mean {close[0]}?")
        if not equals:
            following = next(rest, None)
            if following is None or following.startswith("--"):
                raise SpecError(f"--{field} has no value. hint: pass --{field}=VALUE.")
            value = following
        overrides[field] = value
    return path, overrides
