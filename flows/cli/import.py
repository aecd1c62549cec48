"""import: load result files of other tools as runs.

    assayline import [KIND] PATH...

It does not use Prefect, and needs neither vLLM nor torch.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from assayline.flows.cli.options import add_tags, make_parser
from assayline.imports import KINDS

if TYPE_CHECKING:
    from assayline.imports.make import Outcome
    from assayline.store.manifest import Manifest

FILES = "\n".join(f"  {kind:<13}  {files}" for kind, files in KINDS.items())
EPILOG = f"""Kinds of files, found by their content unless KIND is passed first; a folder may mix them
(docs/guides/import.md):
{FILES}

Each run gets the state `imported`, or `cancelled` if its file is partial, and an id that ends with a digest of its
content, so importing it again adds nothing. All commands that read runs then work: list runs, compare, gate,
baseline, report; score and export if the file has answers.

Exit codes: 0 imported, 2 a missing file or an invalid setting, 3 a file is damaged or of another kind,
 6 the run cannot be written or the database cannot be opened."""
PARSER = make_parser("import", EPILOG)
PARSER.add_argument("--machine", metavar="NAME", help="machine that ran it; speeds of one machine are compared")
PARSER.add_argument("--model", metavar="NAME", help="name of the model (default: that of the file)")
PARSER.add_argument("--name", metavar="NAME", help="name of the task or load (default: that of the file)")
PARSER.add_argument("--timezone", metavar="ZONE", default="UTC", help="of times without an offset (default: UTC)")
add_tags(PARSER)
PARSER.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders, perhaps after a KIND")


def run(arguments: list[str]) -> int:
    """Import the files that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    kind = str(known.paths[0]) if str(known.paths[0]) in KINDS else None
    if not (paths := known.paths[1:] if kind else known.paths):
        PARSER.error("the following arguments are required: PATH")
    try:
        zone = ZoneInfo(known.timezone)
    except (ValueError, ZoneInfoNotFoundError):
        PARSER.error(f"--timezone {known.timezone}: expected a name such as Europe/Berlin")

    from assayline.imports.make import Names, import_files
    from assayline.settings import load_settings

    names = Names(model=known.model, name=known.name, machine=known.machine, tags=known.tag)
    runs: list[Manifest] = []
    for outcome in import_files(load_settings(), kind, paths, names, zone, _show, _say):
        print(describe(outcome))
        for note in outcome.notes:
            _say(note)
        runs.append(outcome.run)
    print(f"Next: {_choose_next(runs)}")
    return 0


def _choose_next(runs: "list[Manifest]") -> str:
    """Return the command that judges the newest run: against the oldest one of the same task, if there is one."""
    runs.sort(key=lambda run: run.clock.started_wall_s)
    newest = runs[-1]
    oldest = next(run for run in runs if run.name == newest.name)
    if oldest.run_id == newest.run_id:
        return f"assayline {'report' if newest.purpose == 'totals' else 'view'} {newest.run_id}"
    return f"assayline compare {newest.run_id} {oldest.run_id}"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _show(rows: int) -> None:
    print(f"Read {rows:,} prompts.", file=sys.stderr)


def describe(outcome: "Outcome") -> str:
    """Return the line of a run: id, prompts, model and figures."""
    from assayline.words import SPACE, count

    run = outcome.run
    rows = count(run.prompts.prompt_rows if run.prompts else 0, "prompt")
    parts = [rows if run.purpose == "import" else "totals", f"model {run.model}"]
    parts += [_say_figure(name, *figure) for name, figure in outcome.figures.items()]
    if not outcome.is_new:
        parts.append(f"imported before; {'not stored again' if outcome.notes else 'nothing was stored'}")
    return f"{run.run_id}: {', '.join(parts)}".replace(SPACE, " ")


def _say_figure(metric: str, value: float, unit: str) -> str:
    """Return a metric with its value; its unit once, if that is in its name."""
    from assayline.words import name_metric, show_metric, show_value

    name = name_metric(metric)
    return f"{show_value(value)} {name}" if name.endswith(unit) else f"{name} {show_metric(value, unit)}"
