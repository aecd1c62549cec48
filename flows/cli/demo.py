"""demo: evaluate a tiny model, break it, and see the gate fail; or judge results of other tools.

    assayline demo [FOLDER] [--import]

The model, its questions, the spec and the results are copied from this package, so nothing is downloaded.
"""

import shutil
import sys
from pathlib import Path

from assayline.flows.cli.options import make_parser

EPILOG = """It copies a model of 430,000 parameters, 155 questions and a spec into FOLDER, and runs four commands:
evaluate, baseline pin, evaluate at temperature 1.5, and gate, which fails. vLLM answers, on a GPU or a CPU; a minute.
With --import it copies two results of lm-evaluation-harness and one of vllm bench, imports them, and compares the
first two by a gate, which fails; it needs no vLLM and takes seconds.

Exit codes: 0 the gate failed as expected, and else that of the command that failed."""
PARSER = make_parser("demo", EPILOG)
PARSER.add_argument("folder", nargs="?", default="assayline-demo", metavar="FOLDER", help="default: assayline-demo")
PARSER.add_argument("--import", action="store_true", dest="imports", help="judge results of other tools, without vLLM")
FILES = Path(__file__).with_name("demo")
RESULTS = FILES / "results"
NAME = "demo"
BEFORE = "20261128-230519-sums-c4320b029d58"
AFTER = "20261128-230559-sums-06fcc9968e4d"
"""The runs of the two results of lm-evaluation-harness."""


def run(arguments: list[str]) -> int:
    """Copy the files and run the commands. Return the exit code."""
    given = PARSER.parse_args(arguments)

    from assayline.errors import StoreError
    from assayline.flows.cli import run as run_command

    folder = Path(given.folder)
    spec = folder / "demo.yaml"
    try:
        if given.imports:
            shutil.copytree(RESULTS, folder / RESULTS.name, dirs_exist_ok=True)
        else:
            shutil.copytree(FILES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RESULTS.name))
            spec.write_text(spec.read_text(encoding="utf-8").replace("FOLDER", str(folder)), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"The demo cannot be copied to {folder}: {error}. hint: pass another folder.") from None
    steps: tuple[tuple[str, ...], ...] = (
        ("import", str(folder / RESULTS.name)),
        ("gate", AFTER, "--baseline", BEFORE),
    )
    if not given.imports:
        steps = (
            ("evaluate", str(spec)),
            ("baseline", "pin", NAME, "last"),
            ("evaluate", str(spec), "--sampling.temperature", "1.5"),
            ("gate", "last", "--baseline", NAME),
        )
    code = 0
    for command, *words in steps:
        print(f"$ assayline {' '.join([command, *words])}", flush=True)
        code = run_command(command, words)
        if code and command != "gate":
            return code
    if code != 1:
        print(f"error: The gate ended with exit code {code}, expected 1.", file=sys.stderr)
        return code or 11
    new, old = (AFTER, BEFORE) if given.imports else ("last", NAME)
    print(f"The gate failed, as it should. The answers that changed: assayline view {new} {old}")
    return 0
