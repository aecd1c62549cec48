"""docs/guides/extending.md and own-metrics.md are followed to the letter, in a copy of the code."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = "".join(
    (ROOT / "docs" / "guides" / name).read_text(encoding="utf-8") for name in ("extending.md", "own-metrics.md")
)
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^##? |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
STEP = re.compile(
    r"^(?:New file `(?P<new>[^`]+)`|In `(?P<file>[^`]+)`, (?P<how>before|replace)\s`(?P<line>[^`]+)`|Try it)\n\n"
    r"```\w+\n(?P<code>.*?)```$",
    flags=re.MULTILINE | re.DOTALL,
)

FOLLOWED_TOGETHER = ("A metric", "A section of the report")
pytestmark = pytest.mark.slow


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The code that an example changes."""
    for folder in ("assayline", "sql", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def follow(page: str, copy: Path) -> int:
    """Run every step of a section; return how many scripts were run."""
    scripts = 0
    for step in STEP.finditer(page):
        code = step["code"]
        if step["new"]:
            file = copy / step["new"]
            assert not file.exists(), f"{step['new']} is there already"
            file.write_text(code, encoding="utf-8")
        elif step["file"]:
            file = copy / step["file"]
            text = file.read_text(encoding="utf-8")
            assert text.count(f"\n{step['line']}") == 1, f"{step['file']} has not one line that begins {step['line']!r}"
            new = code if step["how"] == "before" else code.removesuffix("\n")
            new += step["line"] if step["how"] == "before" else ""
            file.write_text(text.replace(f"\n{step['line']}", f"\n{new}"), encoding="utf-8")
        else:
            scripts += 1
            run = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
            assert run.returncode == 0, f"{code}\n{run.stderr}"
    return scripts


@pytest.mark.parametrize("title", [title for title in SECTIONS if title not in FOLLOWED_TOGETHER])
def test_an_example_works_as_it_is_written(title, copy):
    assert follow(SECTIONS[title], copy) == 1


def test_a_section_shows_the_metric_before_it(copy):
    assert follow("".join(SECTIONS[title] for title in FOLLOWED_TOGETHER), copy) == 2


def test_every_block_of_code_is_a_step():
    assert len(re.findall(r"^```\w", PAGE, flags=re.MULTILINE)) == len(STEP.findall(PAGE)) >= 10
