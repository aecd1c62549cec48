"""The wheel alone: built, installed where no checkout is, and used in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import flow_kit
import pytest

from assayline import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "assayline", "flows", "tasks", "sql")
"""What the wheel is made of."""
FOLDERS = {"assayline": "", "flows": "flows/", "tasks": "tasks/", "sql": "sql/"}
"""Folders at the root, and their places in the package."""
HOME = "import assayline, assayline.flows.cli; print(assayline.__file__); print(assayline.flows.cli.__file__)"
LOAD_NIGHTLY = """
from prefect.flows import load_flow_from_entrypoint
flow = load_flow_from_entrypoint("assayline.flows.nightly.nightly")
print(flow.name, list(flow.parameters.properties))
"""
QUERY = """
import duckdb
with duckdb.connect("data/assayline.duckdb", read_only=True) as connection:
    query = "select value from metric_value where metric = 'accuracy' and statistic = 'mean'"
    print(connection.execute(query).fetchone())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout, as building leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=skipped)
        else:
            shutil.copy(ROOT / name, copy / name)
    uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", copy / "dist", copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with the wheel, which finds this one's other packages."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    uv("venv", "--python", sys.executable, venv)
    uv("pip", "install", "--no-deps", "--python", venv / "bin" / "python", wheel)
    (packages,) = venv.glob("lib/python*/site-packages")
    # A path in a .pth file is searched for packages, and its own .pth files, such as the checkout's, are not read.
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return venv / "bin"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user's environment: no setting, and the schema is made from the wheel's own files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASSAYLINE_", "PREFECT_API_"))}
    kept.pop("EMPTY_DATABASE", None)
    flow_kit.copy_prefect_database(tmp_path / "prefect")
    own = {
        "PYTHONPATH": str(ROOT / "tests" / "as_users"),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "ASSAYLINE_LOCK_DIR": str(tmp_path / "locks"),
    }
    return {**kept, **own}


def uv(*words: str | Path) -> None:
    """Runs the uv of this environment without a network; fails with what it printed."""
    command = [str(Path(sys.executable).parent / "uv"), "--offline", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_has_one_package_with_every_file_of_the_folders(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"assayline", f"assayline-{__version__}.dist-info"}
    expected = {
        f"{place}{path.relative_to(ROOT / folder)}"
        for folder, place in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(expected) > 250
    assert {name for name in expected if f"assayline/{name}" not in names} == set()
    assert {"assayline/py.typed", "assayline/__init__.pyi"} <= names


@pytest.fixture
def call(installed: Path, environ: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Runs a command of the environment in an empty folder, and returns what it prints."""
    (tmp_path / "empty").mkdir()

    def run(*words: str) -> str:
        command = [str(installed / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=tmp_path / "empty", env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def test_wheel_creates_a_project_where_no_checkout_is(call, installed):
    homes = call("python", "-c", HOME).split()
    assert all(Path(home).is_relative_to(installed.parent) for home in homes), homes
    assert "created project/spec.yaml\n" in call("assayline", "init", "project")


@pytest.mark.rare
def test_wheel_evaluates_queries_reports_and_scores_in_an_empty_folder(call, installed, tmp_path, modest_model):
    folder = tmp_path / "empty"
    assert call("assayline", "--version") == call("python", "-m", "assayline", "--version") == "assayline 0.2.0\n"
    assert "  evaluate " in call("assayline", "--help")
    assert f"{installed.parent}/lib/" in call("assayline", "doctor")
    spec = flow_kit.trial_spec(modest_model, flow_kit.write_rows(folder / "sums.jsonl", 20))
    spec["prompts"]["source"]["path"] = "sums.jsonl"
    flow_kit.write_spec(folder / "spec.yaml", spec)
    printed = call("assayline", "evaluate", "spec.yaml")
    assert f"Report: {folder}/data/runs/" in printed
    assert "(1.0,)" in call("python", "-c", QUERY)
    (listed,) = json.loads(call("assayline", "list", "runs", "--json"))
    assert (listed["state"], listed["accuracy"]) == ("completed", 1.0)
    report = call("assayline", "report", "last").splitlines()[0].removeprefix("Report: ")
    assert "<html" in (folder / report).read_text(encoding="utf-8")
    assert "exact_match" in call("assayline", "score", "last", "--scorer", "exact_match")
    assert "nightly ['spec', 'baseline', 'resume']" in call("python", "-c", LOAD_NIGHTLY)
