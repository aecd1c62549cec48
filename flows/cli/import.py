"""import: load result files of other tools as runs.

    assayline import KIND PATH...

It does not use Prefect, and needs neither vLLM nor torch.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.imports import KINDS

if TYPE_CHECKING:
    from assayline.imports.make import Outcome

FILES = "\n".join(f"  {kind:<13}  {files}" for kind, files in KINDS.items())
EPILOG = f"""Kinds of files (docs/guides/import.md):
{FILES}

Each run in the files gets the state `imported` and an id that ends with their digest, so importing them again adds
nothing. All commands that read runs then work: runs, gate, baseline, score, report, export.

Exit codes: 0 imported, 2 a missing file or an invalid setting, 3 a file is damaged or of another kind,
 6 the run cannot be written or the database cannot be opened."""
PARSER = make_parser("import", EPILOG)
PARSER.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help="kind of the files: " + ", ".join(KINDS))
PARSER.add_argument("--machine", metavar="NAME", help="machine that ran it; speeds of one machine are compared")
PARSER.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")


def run(arguments: list[str]) -> int:
    """Import the files that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.imports.make import import_files
    from assayline.settings import load_settings

    for outcome in import_files(load_settings(), known.kind, known.paths, known.machine, _show):
        print(_describe(outcome))
        for note in outcome.notes:
            print(note, file=sys.stderr)
    return 0


def _show(rows: int) -> None:
    print(f"Read {rows:,} prompts.", file=sys.stderr)


def _describe(outcome: "Outcome") -> str:
    from assayline.words import count

    run = outcome.run
    if not outcome.is_new:
        return f"{run.run_id}: imported before; {'not stored again' if outcome.notes else 'nothing was stored'}."
    rows = run.prompts.prompt_rows if run.prompts else 0
    return f"{run.run_id}: {count(rows, 'prompt')}, model {run.model}"
