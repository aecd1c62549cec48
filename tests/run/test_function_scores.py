"""Runs scored by functions of one's own: their failures, and what becomes of the scores afterwards."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE, answer_in_order, answer_run, begin_and_vanish, copy_run, query, settings_in

from assayline.errors import SpecError, StoreError
from assayline.flows.cli import run
from assayline.run.begin import begin_evaluation, plan_run
from assayline.run.evaluation import RunResult
from assayline.run.rebuild import rebuild_run
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.manifest import SCORERS_NAME
from assayline.store.score_files import FUNCTION_SCORES_NAME

pytestmark = pytest.mark.slow

MODULE = """
def closeness(answer, target, row):
    return 1 / (1 + abs(float(answer) - float(target))), answer, f"row {row['id']}"

def no_longer_than(answer, target, row, most=1):
    return {"score": len(answer) <= most, "reason": row["unit"]}
"""
CLOSENESS = {"kind": "python", "function": "own_closeness:closeness"}
ROWS = [{"id": f"q{n}", "question": f"{n} + {n}", "answer": str(2 * n), "unit": "apples"} for n in range(6)]
ANSWERS = ["0", "3", "four", "6", None, "11"]
"""Two right, two close, one that no function reads, one error of the engine."""
SCORES = "select scorer, value, extracted, explanation, error_kind from scores order by all"
MEANS = "select scorer, samples, round(mean, 4), round(mean_without_errors, 4) from accuracy order by ordinal"
EXPECTED_MEAN, EXPECTED_WITHOUT_ERRORS = round(3 / 6, 4), round(3 / 4, 4)


def make_project(folder: Path) -> Path:
    """A folder with a function."""
    folder.mkdir()
    (folder / "own_closeness.py").write_text(MODULE, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the test's own, which is the working folder."""
    folder = make_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def make_sums(make_spec: Any) -> Callable[..., EvalSpec]:
    """A spec of six sums for the fake engine."""

    def make(scorers: list[Any], **fields: Any) -> EvalSpec:
        prompts = {
            "source": {"kind": "inline", "rows": ROWS},
            "columns": {"target": "answer", "id": "id", "metadata": ["unit"]},
        }
        made: EvalSpec = make_spec(engine=FAKE, prompts=prompts, chat={"template": "plain"}, scorers=scorers, **fields)
        return made

    return make


def complete(spec: EvalSpec, settings: Settings, **how: Any) -> RunResult:
    """Complete a new run of a spec with `ANSWERS`."""
    return answer_run(spec, settings, *ANSWERS, **how)


@pytest.fixture
def run_with(settings: Settings) -> Callable[..., RunResult]:
    return partial(complete, settings=settings)


@pytest.fixture(scope="module")
def finished(make_sums: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of the run, and its notes."""
    folder = tmp_path_factory.mktemp("finished")
    settings = settings_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(make_project(folder / "project"))
        result = complete(make_sums([CLOSENESS]), settings)
    return settings.run_dir(result.run_id), result.notes


@pytest.fixture
def run_dir(finished: tuple[Path, list[str]], settings: Settings) -> Path:
    """The folder of a copy of that run, which a test may change."""
    return copy_run(finished[0], settings)


@pytest.mark.usefixtures("run_dir")
def test_a_run_is_scored_by_a_function(finished, settings):
    assert query(settings, MEANS) == [("closeness", 6, EXPECTED_MEAN, EXPECTED_WITHOUT_ERRORS)]
    assert query(settings, SCORES.replace("order by all", "where value = 0 order by all")) == [
        ("closeness", 0.0, None, "ValueError: could not convert string to float: 'four'", "scorer_error"),
        ("closeness", 0.0, None, "error: broken", "broken"),
    ]
    assert query(settings, "select extracted, explanation from scores where scorer = 'closeness' and value = 0.5") == [
        ("3", "row q1"), ("11", "row q5")
    ]  # fmt: skip
    values = (
        "select metric, detail, value from metric_values "
        "where metric in ('accuracy', 'accuracy_without_errors') order by all"
    )
    assert query(settings, values) == [
        ("accuracy", "closeness", 0.5),
        ("accuracy_without_errors", "closeness", 0.75),
    ]
    (note,) = [note for note in finished[1] if "closeness" in note]
    assert note == (
        "closeness failed on 1 of 5 answers, which count as errors with a score of 0. The first error: "
        "ValueError: could not convert string to float: 'four'."
    )


def test_scores_of_a_function_survive_a_rebuild_without_its_file(run_dir, settings, project):
    before = query(settings, SCORES)
    (project / "own_closeness.py").unlink()
    settings.database_path.unlink()
    rebuilt = rebuild_run(run_dir, settings.database_path, 10)
    assert rebuilt.scores == {"closeness": 6}
    assert query(settings, SCORES) == before


def test_score_adds_a_function_to_a_run_that_a_rebuild_keeps(make_sums, settings, run_with, project, capsys):
    run_dir = settings.run_dir(run_with(make_sums(["numeric"])).run_id)
    added = "{kind: python, function: 'own_closeness:no_longer_than', arguments: {most: 1}, name: short}"
    assert run("score", [run_dir.name, "--scorer", json.dumps(CLOSENESS), "--dry-run"]) == 0
    assert "closeness failed on 1 of 5 answers" in " ".join(capsys.readouterr().out.split())
    assert run("score", [run_dir.name, "--scorer", added, "--dry-run"]) == 0
    assert "short" in capsys.readouterr().out
    assert not (run_dir / FUNCTION_SCORES_NAME).exists() and not (run_dir / SCORERS_NAME).exists()
    assert query(settings, "select distinct scorer from scores") == [("numeric",)]
    assert run("score", [run_dir.name, "--scorer", added]) == 0
    expected = [(0.0, "apples"), (0.0, "apples"), (0.0, "error: broken"), *[(1.0, "apples")] * 3]
    read = "select value, explanation from scores where scorer = 'short' order by all"
    assert query(settings, read) == expected
    settings.database_path.unlink()
    (project / "own_closeness.py").unlink()
    rebuild_run(run_dir, settings.database_path, 10)
    assert query(settings, read) == expected
    assert query(settings, "select scorer from accuracy order by ordinal") == [("numeric",), ("short",)]


def test_score_stale_scores_runs_again_whose_function_changed(make_sums, settings, project, run_with):
    old = run_with(make_sums([CLOSENESS])).run_id
    file = project / "own_closeness.py"
    file.write_text(MODULE.replace("(1 + abs", "(2 + abs"), encoding="utf-8")
    new = run_with(make_sums([CLOSENESS])).run_id
    verdict = f"select same_scorer from compare_runs('{new}', '{old}')"
    assert query(settings, verdict) == [(False,)]
    assert run("score", ["--stale"]) == 0
    assert query(settings, verdict) == [(True,)]
    assert query(settings, f"select max(value) from scores where run_id = '{old}'") == [(0.5,)]
    file.unlink()
    assert run("score", ["--stale"]) == 0, "a function that is gone makes no run stale"


def test_a_run_whose_function_disappears_completes_without_its_scores(make_sums, settings, project, run_with, capsys):
    moved = project / "elsewhere"
    scorers = [CLOSENESS, {**CLOSENESS, "function": "other:closeness", "name": "other"}, "numeric"]
    shutil.copy(project / "own_closeness.py", project / "other.py")
    result = run_with(make_sums(scorers), before_end=lambda: (project / "own_closeness.py").rename(moved))
    assert query(settings, "select state from runs") == [("completed",)]
    assert query(settings, "select scorer, samples from accuracy order by ordinal") == [("other", 6), ("numeric", 6)]
    assert [note for note in result.notes if note.startswith("closeness scored nothing. There is no module")]
    assert f"`assayline score {result.run_id}` adds the scores that are missing." in result.notes
    moved.rename(project / "own_closeness.py")
    assert run("score", [result.run_id]) == 0
    scored = query(settings, "select scorer, samples from accuracy order by ordinal")
    assert scored == [("closeness", 6), ("other", 6), ("numeric", 6)]
    before = query(settings, SCORES)
    (project / "own_closeness.py").unlink()
    capsys.readouterr()
    assert run("score", [result.run_id]) == 0
    assert "closeness scored nothing." in " ".join(capsys.readouterr().out.split())
    assert query(settings, SCORES) == before, "scores of a function that is gone are kept"


def test_an_unfinished_run_has_its_scores_after_resuming(make_sums, settings):
    spec = make_sums([CLOSENESS])
    killed = begin_and_vanish(spec, settings)
    answer_in_order(killed, *ANSWERS[:2])
    evaluation = begin_evaluation(spec, settings)
    assert evaluation.run_id == killed.run_id
    counts = evaluation.prepare()
    answer_in_order(evaluation, *ANSWERS[2:], first=2)
    evaluation.finish(counts)
    assert query(settings, MEANS) == [("closeness", 6, EXPECTED_MEAN, EXPECTED_WITHOUT_ERRORS)]


def test_damaged_scores_are_an_error_with_a_hint(run_dir, settings, capsys):
    before = query(settings, SCORES)
    hint = rf"scores of functions.*hint: .*remove it.*assayline score {run_dir.name}"
    for damaged in ("{", "[1]", '{"closeness": {"definition": "x"}}', '{"closeness": 1}'):
        (run_dir / FUNCTION_SCORES_NAME).write_text(damaged)
        with pytest.raises(StoreError, match=hint):
            rebuild_run(run_dir, settings.database_path, 10)
    assert run("score", [run_dir.name]) == 6
    assert FUNCTION_SCORES_NAME in capsys.readouterr().err
    (run_dir / FUNCTION_SCORES_NAME).unlink()
    assert run("score", [run_dir.name]) == 0
    assert query(settings, SCORES) == before


def test_damaged_scores_at_the_end_of_a_run_lose_no_answer(make_sums, settings):
    evaluation = begin_evaluation(make_sums([CLOSENESS]), settings)
    counts = evaluation.prepare()
    answer_in_order(evaluation, *ANSWERS)
    (evaluation.run_dir / FUNCTION_SCORES_NAME).write_text("{")
    with pytest.raises(StoreError, match=r"scores of functions.*cannot be read"):
        evaluation.finish(counts)
    (evaluation.run_dir / FUNCTION_SCORES_NAME).unlink()
    again = begin_evaluation(evaluation.spec, settings)
    assert again.run_id == evaluation.run_id and again.is_answered
    again.finish(again.prepare())
    assert query(settings, MEANS) == [("closeness", 6, EXPECTED_MEAN, EXPECTED_WITHOUT_ERRORS)]


def test_likelihoods_of_options_are_not_scored_by_a_function(make_spec, settings):
    prompts = {
        "source": {"kind": "inline", "rows": [{"question": "1", "options": ["a", "b"], "answer": 0}]},
        "columns": {"target": "answer", "options": "options"},
    }
    with pytest.raises(SpecError, match="loglikelihood"):
        plan_run(make_spec(engine=FAKE, prompts=prompts, scorers=["loglikelihood", CLOSENESS]), settings)
