"""The Dockerfile, as far as it can be checked without Docker: what it copies is there, is enough, and runs.

The image itself was not built here.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))


def read_instructions() -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined, options left out."""
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, rest in lines]


def copied() -> list[tuple[str, str]]:
    """Return what is copied from this folder, and its destination."""
    found = []
    for name, rest in read_instructions():
        words = [word for word in rest.split() if not word.startswith("--")]
        if name == "COPY" and "--from=" not in rest:
            found += [(source, words[-1]) for source in words[:-1]]
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of the image, from files that git has."""
    folder = tmp_path_factory.mktemp("image")
    for source, target in copied():
        listed = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True)
        files = listed.stdout.split()
        assert files, f"{source} is not in the repository"
        for file in files:
            to = folder / (target if (ROOT / source).is_dir() else Path(target) / Path(source).name)
            place = to / Path(file).relative_to(source) if (ROOT / source).is_dir() else to
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, place, follow_symlinks=False)
    return folder


def test_image_has_all_files_that_commands_need(image):
    env = {"PYTHONPATH": str(image), "PATH": "/usr/bin:/bin", "HOME": str(image)}
    for arguments in (["--help"], ["evaluate", "--help"]):
        program = (
            "import sys; from assayline.flows import cli; "
            f"assert cli.__file__.startswith({str(image)!r}); sys.exit(cli.main())"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments], cwd=image, env=env, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0 and "usage" in ended.stdout.lower(), ended.stderr
    models = "import pathlib; from assayline.store.database import connect; connect(pathlib.Path('a'), 10).__enter__()"
    subprocess.run([sys.executable, "-c", models], cwd=image, env=env, check=True, timeout=120)
    subprocess.run([sys.executable, "scripts/setup.py", "--help"], cwd=image, check=True, capture_output=True)


def test_image_runs_a_project_command_as_an_ordinary_user():
    instructions = read_instructions()
    users = [rest for name, rest in instructions if name == "USER"]
    assert users == ["10001:10001"]  # kubelet: "image has non-numeric user (…), cannot verify user is non-root"
    for manifest in (ROOT / "deploy" / "kubernetes").iterdir():
        text = manifest.read_text()
        assert text.count("runAsNonRoot") == text.count("runAsUser"), manifest
    names = [name for name, _ in instructions]
    assert "ADD" not in names and names.index("USER") < names.index("WORKDIR")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert dict(instructions)["ENTRYPOINT"] == '["tini", "--", "assayline"]' and "assayline" in scripts
    assert any(name == "RUN" and " tini " in rest for name, rest in instructions)
    assert any(name == "RUN" and "setup.py --target cuda" in rest for name, rest in instructions)
