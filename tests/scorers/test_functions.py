"""Functions are found by name, run in processes of their own, and cost an answer its score at most."""

import importlib
import math
import os
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from assayline.errors import SpecError
from assayline.functions import SCORERS, find_function
from assayline.scorers import Score, process
from assayline.scorers.host import read_score
from assayline.scorers.process import ScorerInput, check_function, define_function
from assayline.spec.criteria import PythonScorer

pytestmark = pytest.mark.slow

MODULE = """
import math, os, signal, sys, time

def same(answer, target, row, bonus=0.0):
    return float(answer == target) + bonus, answer.upper(), f"row {row['i']}"

def hostile(answer, target, row):
    match answer:
        case "raise": raise ValueError("no\\nway")
        case "hang": time.sleep(60)
        case "memory": bytearray(10 * 2**30)
        case "nan": return math.nan
        case "two": return 2
        case "exit": sys.exit(3)
        case "quit": sys.exit(0)
        case "segfault": os.kill(os.getpid(), signal.SIGSEGV)
        case "text": return "good"
        case "none": return None
        case "print": print("x" * 100_000)
        case "close":
            open("pid", "w").write(str(os.getpid()))
            os.closerange(3, 64)
            time.sleep(60)
    return 1

def in_batches(answers, targets, rows):
    assert len(answers) == len(targets) == len(rows) <= 3
    return [hostile(*one) for one in zip(answers, targets, rows)]

def short(answers, targets, rows):
    return []

number = 7
"""
FAILURES = {
    "raise": "ValueError: no way",
    "hang": "scoring took more than 1 s",
    "memory": "MemoryError",
    "nan": "ValueError: the function returned nan; expected a number from 0 to 1",
    "two": "ValueError: the function returned 2.0; expected a number from 0 to 1",
    "exit": "its process ended with exit code 3",
    "quit": "its process ended with exit code 0",
    "segfault": "its process ended with signal SIGSEGV",
    "text": "ValueError: the function returned 'good'; expected a number from 0 to 1",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of functions, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_scoring.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def make(function: str, **fields: object) -> PythonScorer:
    return PythonScorer.model_validate(
        {"kind": "python", "function": f"own_scoring:{function}", "timeout_s": 1, **fields}
    )


def score_answers(*arguments):
    return list(process.score_answers(*arguments))


def answers_of(*texts: str) -> list[ScorerInput]:
    return [ScorerInput(text, "b", {"i": i}) for i, text in enumerate(texts)]


def test_a_function_gets_answer_target_row_and_arguments():
    scores = score_answers(make("same", arguments={"bonus": 0.0}), answers_of("a", "b", "b"))
    assert scores == [Score(0.0, "A", "row 0"), Score(1.0, "B", "row 1"), Score(1.0, "B", "row 2")]


@pytest.mark.parametrize("batch", [None, 3])
def test_a_hostile_answer_costs_its_own_score_only(batch):
    texts = [word for failure in FAILURES for word in ("fine", failure)] + ["none", "print"]
    scorer = make("hostile") if batch is None else make("in_batches", batch_size=batch)
    found = score_answers(scorer, answers_of(*texts))
    for text, score in zip(texts, found, strict=True):
        if text == "none":
            assert score is None
        else:
            assert score is not None and score.failure == FAILURES.get(text)
            assert score.value == (0 if text in FAILURES else 1)


def test_a_function_that_closes_its_pipe_is_killed_at_its_time_limit(project):
    [score] = score_answers(make("hostile"), answers_of("close"))
    assert score is not None and score.failure == "scoring took more than 1 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int((project / "pid").read_text()), 0)


def test_a_function_that_always_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(process, "MOST_KILLS_IN_A_ROW", 2)
    monkeypatch.setattr(process, "MOST_PROCESSES", 1)
    found = score_answers(make("hostile", timeout_s=0.2), answers_of(*["hang"] * 50))
    reasons = [score.failure for score in found if score]
    assert reasons[:2] == ["scoring took more than 0.2 s"] * 2
    assert set(reasons[2:]) == {"not scored, after 2 failures in a row: scoring took more than 0.2 s"}


def test_too_few_scores_for_a_batch_are_failures():
    found = score_answers(make("short", batch_size=2), answers_of("a", "b"))
    assert [score.failure for score in found if score] == [
        "ValueError: the function returned 0 scores for 1 answers"
    ] * 2


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (True, Score(1.0)),
        (0.25, Score(0.25)),
        ((1, 42), Score(1.0, "42")),
        ([0.5, None, "half"], Score(0.5, None, "half")),
        ({"score": 1, "reason": "yes"}, Score(1.0, None, "yes")),
        (Score(1, "7", "so", "last"), Score(1.0, "7", "so", "last")),
        (None, None),
    ],
)
def test_read_score_takes_numbers_tuples_and_mappings(returned, expected):
    assert read_score(returned) == expected


@pytest.mark.parametrize("returned", [math.inf, -0.1, "x", (), (1, 2, 3, 4), {"score": 1, "value": 2}, {}])
def test_read_score_refuses_other_values(returned):
    with pytest.raises(ValueError, match="the function returned"):
        read_score(returned)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("own_scoring:missing", "AttributeError: module 'own_scoring' has no attribute 'missing'"),
        ("own_scoring:number", "own_scoring:number is int, not a function"),
        ("nowhere:f", r"no module 'nowhere'.*hint: put nowhere\.py in the"),
        ("own_scoring:", "does not name a function"),
        ("closeness", "No installed package registers 'closeness'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_at_the_start(function, sentence):
    with pytest.raises(SpecError, match=sentence):
        check_function(PythonScorer(kind="python", function=function))


def test_a_module_that_fails_on_import_is_refused_with_its_error(project):
    (project / "own_scoring.py").write_text("import not_there", encoding="utf-8")
    with pytest.raises(
        SpecError, match=r"ModuleNotFoundError: No module named 'not_there'\. hint: it is in .*own_scoring"
    ):
        check_function(make("same"))


def test_other_code_is_another_definition(project):
    before = define_function(make("same"))
    assert before == define_function(make("same"))
    (project / "own_scoring.py").write_text(MODULE.replace("upper", "lower"), encoding="utf-8")
    assert define_function(make("same")) != before


def test_names_that_packages_register(project, monkeypatch):
    def register(*values: str) -> None:
        for number, value in enumerate(values):
            info = project / f"package{number}-1.0.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: package{number}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(f"[{SCORERS}]\nclose = {value}\n")

    monkeypatch.syspath_prepend(str(project))
    register("own_scoring:same")
    importlib.invalidate_caches()
    assert find_function("close", SCORERS).reference == "own_scoring:same"
    register("own_scoring:same", "own_scoring:hostile")
    importlib.invalidate_caches()
    with pytest.raises(SpecError, match=r"Several packages register 'close'.*package0, package1.*own_scoring:hostile"):
        find_function("close", SCORERS)


def test_a_function_of_an_editable_install_is_found(monkeypatch, tmp_path):
    """Such a package is on no path: a finder of its own knows its folder."""
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "scoring.py").write_text("def same(answer, target): return 1.0")

    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            return spec_from_file_location(name, tmp_path / "away" / "scoring.py") if name == "edited_scoring" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert find_function("edited_scoring:same", SCORERS).file == tmp_path / "away" / "scoring.py"
