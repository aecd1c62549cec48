"""init: create a project that can be evaluated.

    assayline init DIR [--model MODEL]

The files are in `project/` next to this module. Names there have no leading dot, and Python files end in .txt, so that
packaging and tests leave them alone.
"""

import json
import os
import re
import shlex
from pathlib import Path

import assayline
from assayline.errors import SpecError
from assayline.files import write_text
from assayline.flows.cli.options import make_parser

TEMPLATES = Path(__file__).parent / "project"
FILES = {
    "spec.yaml": "spec.yaml",
    "questions.jsonl": "questions.jsonl",
    "scoring.py": "scoring.py.txt",
    "test_scoring.py": "test_scoring.py.txt",
    "prefect.yaml": "prefect.yaml",
    ".env": "env",
    ".gitignore": "gitignore",
    ".github/workflows/evaluate.yml": "evaluate.yml",
    "README.md": "README.md",
}
"""Files of a project, by the names of their templates."""
KEPT = frozenset({"README.md", ".env", ".gitignore"})
"""Files that a new repository often has: they are kept, and the project is created around them."""
SCHEMA = Path(assayline.__file__).with_name("spec") / "spec.schema.json"
SCHEMA_FILE = ".assayline/spec.schema.json"
DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""As in the template of the spec, which is valid as it stands."""
PLAIN = re.compile(r"[\w./-]*[A-Za-z][\w./-]*")
"""A model's name that YAML reads as text without quotes."""

EPILOG = """Nothing is overwritten. README.md, .env and .gitignore are kept if they exist; any other file of the
project that exists is an error.

Exit codes: 0 created, 2 the folder has files of a project, or is not a folder, 6 it cannot be written."""
PARSER = make_parser("init", EPILOG)
PARSER.add_argument("folder", metavar="DIR", type=Path, help="where to; `.` for the current folder")
PARSER.add_argument(
    "--model", default=DEFAULT_MODEL, metavar="MODEL", help=f"hub id or folder (default: {DEFAULT_MODEL})"
)


def run(arguments: list[str]) -> int:
    """Creates the project, and prints how to go on. Returns the exit code."""
    known = PARSER.parse_args(arguments)
    created = create_project(known.folder, known.model)
    for name in (*FILES, SCHEMA_FILE):
        print(f"{'created' if name in created else 'kept   '} {known.folder / name}")
    print("\nNext:")
    if known.folder.resolve() != Path.cwd():
        print(f"  cd {shlex.quote(str(known.folder))}")
    print("  assayline doctor\n  assayline evaluate spec.yaml --dry-run\n  assayline evaluate spec.yaml")
    if known.model == DEFAULT_MODEL:
        print(f"\nThe model is {DEFAULT_MODEL}, from Hugging Face (270 MB). Change `model` in spec.yaml for another.")
    return 0


def create_project(folder: Path, model: str) -> list[str]:
    """Write a project's files, except those of KEPT that exist, and return their names.

    Raise SpecError, and then write nothing, if another one exists or `folder` is not a folder; StoreError if the file
    system refuses.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is not a folder. hint: choose another name.")
    there = {name for name in (*FILES, SCHEMA_FILE) if os.path.lexists(folder / name)}
    if hinder := sorted(there - KEPT):
        raise SpecError(
            f"{folder} already has {', '.join(hinder)}; nothing was written. hint: choose another folder, or move "
            "these files away."
        )
    if not model.strip() or not model.isprintable():
        raise SpecError(f"--model {model!r} is not a model. hint: give a hub id or a folder.")
    given = Path(model).expanduser()
    if given.is_dir():  # a project has its own folder, which a relative path would be read from
        model = str(given.resolve())
    texts = {name: (TEMPLATES / template).read_text(encoding="utf-8") for name, template in FILES.items()}
    texts["spec.yaml"] = texts["spec.yaml"].replace(DEFAULT_MODEL, _quote(model))
    # Deployments of one name replace each other on a server.
    project = re.sub(r"[^\w.]+", "-", folder.resolve().name).strip("-") or "project"
    for name in ("prefect.yaml", ".github/workflows/evaluate.yml"):
        texts[name] = texts[name].replace("PROJECT", project)
    texts[SCHEMA_FILE] = SCHEMA.read_text(encoding="utf-8")
    created = [name for name in texts if name not in there]
    for name in created:
        write_text(folder / name, texts[name], "hint: choose a folder that can be written.")
    return created


def _quote(text: str) -> str:
    """Text as a scalar of YAML."""
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
