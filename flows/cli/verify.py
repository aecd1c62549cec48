"""verify: check the numbers that result files state against their rows.

assayline verify PATH...
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser

if TYPE_CHECKING:
    from assayline.imports.rows import Total

EPILOG = """Reads exports of assayline (lm-eval, eee) and results of other tools with their samples or requests, as
`assayline import` does, and stores nothing. Each number that differs is printed with both values.

Exit codes: 0 no number differs, 1 a number differs, 3 a file is damaged, of no known kind or does not exist."""
PARSER = make_parser("verify", EPILOG)
PARSER.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")


def run(arguments: list[str]) -> int:
    """Print what was recomputed. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.imports.verify import verify_files
    from assayline.words import count

    differ = 0
    for one in verify_files(known.paths, lambda sentence: print(sentence, file=sys.stderr)):
        differ += len(one.different)
        stated = count(len(one.equal) + len(one.different) + len(one.unknown), "number")
        print(f"{one.name}: {stated} stated, {len(one.equal)} recomputed and equal, {len(one.different)} different.")
        for total, value in one.different:
            print(f"  {_name(total)}: stated {total.value!r}, the rows give {value!r}")
        if one.unknown:
            names = list(dict.fromkeys(map(_name, one.unknown)))
            print(f"  cannot be recomputed: {', '.join(names[:8])}{', …' * (len(names) > 8)}")
    return int(differ > 0)


def _name(total: "Total") -> str:
    return " ".join(filter(None, [total.metric, total.statistic, total.detail and f"({total.detail})"]))
