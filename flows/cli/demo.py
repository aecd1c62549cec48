"""demo: evaluate a tiny model, break it, and see the gate fail.

    assayline demo [FOLDER]

The model, its questions and the spec are copied from this package, so nothing is downloaded.
"""

import shutil
import sys
from pathlib import Path

from assayline.flows.cli.options import make_parser

EPILOG = """It copies a model of 430,000 parameters, 155 questions and a spec into FOLDER, and runs four commands:
evaluate, baseline pin, evaluate at temperature 1.5, and gate, which fails. vLLM answers, on a GPU or a CPU; a minute.

Exit codes: 0 the gate failed as expected, and else that of the command that failed."""
PARSER = make_parser("demo", EPILOG)
PARSER.add_argument("folder", nargs="?", default="assayline-demo", metavar="FOLDER", help="default: assayline-demo")
FILES = Path(__file__).with_name("demo")
NAME = "demo"


def run(arguments: list[str]) -> int:
    """Copy the files and run the commands. Return the exit code."""
    folder = PARSER.parse_args(arguments).folder

    from assayline.errors import StoreError
    from assayline.flows.cli import run as run_command

    spec = Path(folder) / "demo.yaml"
    try:
        shutil.copytree(FILES, folder, dirs_exist_ok=True)
        spec.write_text(spec.read_text(encoding="utf-8").replace("FOLDER", folder), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"The demo cannot be copied to {folder}: {error}. hint: pass another folder.") from None
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
    print("The gate failed, as it should. The answers that changed: assayline view last demo")
    return 0
