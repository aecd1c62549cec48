"""A run from its beginning to its end, on the fake engine: what adds up, and what must not."""

from typing import Any

import pytest
from flow_kit import database_held
from run_kit import FAKE, complete, query, work

from assayline.clock import RunClock
from assayline.errors import DatabaseLockedError, ModelError, PromptError, SpecError
from assayline.run.begin import begin_evaluation
from assayline.run.evaluation import read_result
from assayline.spec.evaluation import EvalSpec
from assayline.store.locks import is_worked_on
from assayline.store.manifest import NEVER, new_run_id, read_manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    found: EvalSpec = make_spec(engine=FAKE, prompts={"limit": 30}, shard_requests=8)
    return found


def test_a_run_ends_with_every_request_answered_and_its_metrics(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    assert (counts.prompt_rows, counts.requests, counts.shards) == (30, 30, 4)
    work(evaluation)
    assert evaluation.dispatcher.snapshot().answered == 30
    result = evaluation.finish(counts)
    assert (result.run_id, result.answered_requests) == (evaluation.run_id, 30)
    assert result.metrics
    assert read_result(evaluation.manifest, settings) == result, "whoever asks later learns the same"
    assert query(settings, "select state, expected_requests from runs") == [("completed", 30)]
    assert query(settings, "select count(*), count(distinct request_id) from completions") == [(30, 30)]
    assert (evaluation.run_dir / "spec.json").exists()


def test_results_reach_the_database_while_the_run_goes_on(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    assert evaluation.try_load() is None
    counts = evaluation.prepare()
    work(evaluation)
    before = settings.database_path.read_bytes()
    assert evaluation.try_load() is None
    assert settings.database_path.read_bytes() == before, "killed now, the process leaves a file that opens"
    assert query(settings, "select state, (select count(*) from completions) from runs") == [("running", 30)]
    evaluation.finish(counts)
    assert not settings.database_path.with_name(f"{settings.database_path.name}.wal").exists()


def test_run_answers_all_while_another_program_writes_the_database_and_the_next_command_loads_it(spec, settings):
    settings = settings.model_copy(update={"database_wait_s": 0.2})
    complete(spec, settings)
    with database_held(settings.data_dir) as (pid, _):
        evaluation = begin_evaluation(spec, settings, NEVER)
        assert any(f"locked by process {pid}" in note for note in evaluation.notes)
        counts = evaluation.prepare()
        work(evaluation)
        assert f"is locked by process {pid} (" in str(evaluation.try_load()), "the middle of a run does not wait"
        with pytest.raises(DatabaseLockedError, match=rf"locked by process {pid} .*rebuild {evaluation.run_id}"):
            evaluation.finish(counts)
        evaluation.abandon("failed")  # does not wait again
        manifest = read_manifest(evaluation.run_dir)
        assert manifest.state == "failed" and f"assayline db rebuild {evaluation.run_id}" in str(manifest.message)
        assert not is_worked_on(evaluation.run_dir)
    again = begin_evaluation(spec, settings)
    assert again.run_id == evaluation.run_id and again.is_answered
    again.finish(again.prepare())
    answers = "select count(*) from completions as c where c.run_id = r.run_id"
    assert query(settings, f"select state, ({answers}) from runs as r") == [("completed", 30)] * 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompts": {"source": {"kind": "file", "path": "missing.jsonl"}}}, PromptError),
        ({"prompts": {"columns": {"target": "anwser"}}}, PromptError),
        ({"prompts": {"template": "{{ qestion }}"}}, PromptError),
        ({"chat": {"template": "{% if %}"}}, (ModelError, PromptError, SpecError)),
    ],
)
def test_a_mistake_in_the_prompts_leaves_no_run_behind(make_spec, settings, changes, expected):
    evaluation = begin_evaluation(make_spec(engine=FAKE, **changes), settings)
    with pytest.raises(expected):
        evaluation.prepare()
    evaluation.abandon("failed")
    assert query(settings, "select count(*) from runs") == [(0,)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"engine": {**FAKE, "args": {"max_num_seq": 1}}}, SpecError), ({"model": "./missing"}, ModelError)],
)
def test_evaluate_checks_arguments_before_writing_anything(make_spec, settings, changes, expected):
    with pytest.raises(expected):
        begin_evaluation(make_spec(**changes), settings)
    assert not settings.data_dir.exists()


def test_run_ids_speak_and_differ():
    clock = RunClock(0.0, 0.0, "boot")
    assert new_run_id("My Run: ü/42!", clock).startswith("19700101-000000-my-run-42-")
    assert new_run_id("™", clock).startswith("19700101-000000-run-")
    assert len({new_run_id("x", clock) for _ in range(4)}) == 4


def test_order_names_an_absolute_folder(spec, settings, tiny_model):
    order = begin_evaluation(spec, settings).order("worker-3")
    opened = order.open
    assert (opened.model, opened.worker, opened.engine) == (str(tiny_model), "worker-3", spec.engine)
    assert order.log_folder.is_absolute() and opened.model_id.startswith("sha256:")
