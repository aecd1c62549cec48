"""report: what a run was, how good and how fast, and what changed against a baseline, as a page and as Markdown.

    python -m flows.report RUN_ID [--baseline RUN_ID|NAME] [--out FOLDER] [--open]

No Prefect flow: it reads the database and writes two files. `flows.evaluate` does the same at the end of a run.
"""

import argparse
import sys
import webbrowser
from pathlib import Path

from assayline.errors import AssaylineError
from assayline.report.make import make_report
from assayline.settings import load_settings

EPILOG = """The page is one file that loads nothing, and can be sent or kept as it is.

Exit codes: 0 written, 2 an unknown or unfinished run or baseline, or a wrong setting,
 6 the database cannot be read or the folder not written."""


def main(arguments: list[str] | None = None) -> int:
    """Writes the report that the command line asks for, and prints where it is. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.report",
        description="Write the report of a run: report.html and report.md.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_id", metavar="RUN_ID", help="the run, as `from runs` lists them")
    parser.add_argument("--baseline", metavar="RUN_ID|NAME", help="the run or pinned baseline it is held against")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to (default: the run's folder in data/runs)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    known = parser.parse_args(arguments)
    try:
        written = make_report(load_settings(), known.run_id, known.baseline, known.out)
    except AssaylineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Report: {written.html}\nAs Markdown: {written.markdown}")
    if known.open and not webbrowser.open(written.html.absolute().as_uri()):
        print("There is no browser here that could be opened.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
