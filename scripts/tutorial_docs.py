"""Write the outputs of docs/tutorial/regression-gate.md: `python -m examples.two_weeks`, then this script.

A block of commands that read results is run, in the order of the page, and its output replaced. A test keeps the page
current.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.flows.cli import run_words  # noqa: E402

PAGE = ROOT / "docs" / "tutorial" / "regression-gate.md"
SHOWN = "data/two-weeks"
READING = r"\$ (?:assayline (?:baseline|compare|gate)\b|echo \$\?).*"
BLOCK = re.compile(rf"^```console\n({READING}\n(?:(?!```).*\n)*)```", flags=re.MULTILINE)


def main() -> None:
    PAGE.write_text(render(ROOT / SHOWN), encoding="utf-8")


def render(data_dir: Path) -> str:
    """Return the page with the outputs of its commands on a copy of this data folder."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(data_dir, Path(folder) / "data"))
        with patch.dict(os.environ, {"ASSAYLINE_DATA_DIR": str(copy), "PREFECT_API_URL": ""}):
            text = PAGE.read_text(encoding="utf-8")
            return BLOCK.sub(lambda block: f"```console\n{_run(block[1])}```", text).replace(str(copy), SHOWN)


def _run(block: str) -> str:
    shown, code = "", 0
    for command in re.findall(rf"^{READING}$", block, flags=re.MULTILINE):
        shown += f"{command}\n"
        if command.startswith("$ echo"):
            shown += f"{code}\n"
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run_words(shlex.split(command)[2:])
        shown += out.getvalue().lstrip("\n")
    return shown


if __name__ == "__main__":
    main()
