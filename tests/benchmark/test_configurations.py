"""A benchmark's plan: which configurations, in which order, and what is left of it."""

import dataclasses
import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from run_kit import FAKE, begin_and_vanish, work

from assayline.benchmark.configurations import (
    Ask,
    list_left,
    load_tasks,
    order_runs,
    parse_sweep,
    plan_benchmark,
    read_plan,
)
from assayline.benchmark.frontier import name_configs
from assayline.benchmark.plan import PLAN_NAME, benchmark_dir, count_done, write_plan
from assayline.errors import SpecError, StoreError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.resume import NEVER
from assayline.run.campaign import _do_benchmark
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": [{"question": str(i)} for i in range(4)]}, "columns": {}}
    found: EvalSpec = make_spec(engine=FAKE, prompts=prompts)
    return found


def run(spec: EvalSpec, settings: Settings, benchmark_id: str) -> str:
    evaluation = begin_evaluation(spec, settings, NEVER, benchmark_id)
    counts = evaluation.prepare()
    work(evaluation)
    return evaluation.finish(counts).run_id


def test_every_combination_is_a_configuration(spec, settings):
    sweep = parse_sweep(["engine.max_concurrency=4,8", "engine.args.max_num_seqs=[16, 32]"])
    plan, found = plan_benchmark(Ask(spec=spec, sweep=sweep, repeats=5), settings)
    assert [(one.spec.engine.max_concurrency, one.spec.engine.args["max_num_seqs"]) for one in found] == [
        (4, 16),
        (4, 32),
        (8, 16),
        (8, 32),
    ]
    assert found[0].label == "engine.max_concurrency=4, engine.args.max_num_seqs=16"
    plain, _ = plan_benchmark(
        Ask(spec=spec, sweep={"engine.max_concurrency": [4, 8], "engine.args.max_num_seqs": [16, 32]}, repeats=5),
        settings,
    )
    assert (plain.sweep, plain.config_ids) == (plan.sweep, plan.config_ids)
    assert plan.config_ids == [one.config_id for one in found] and len(set(plan.config_ids)) == 4


def test_without_a_sweep_there_is_one_configuration(spec, settings):
    plan, (only,) = plan_benchmark(Ask(spec=spec, sweep={}, repeats=5), settings)
    assert only.label == "as given" and plan.repeats == 5


def test_models_can_be_swept(spec, settings, tiny_model, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    _, found = plan_benchmark(Ask(spec=spec, sweep={"model": [str(tiny_model), str(other)]}, repeats=1), settings)
    assert [one.spec.model for one in found] == [str(tiny_model), str(other)]


def test_cache_is_off_unless_it_is_set(spec, settings):
    _, (found,) = plan_benchmark(Ask(spec=spec), settings)
    assert found.spec.engine.args["enable_prefix_caching"] is False and found.spec.engine.warmup
    sweep = {"engine.args.enable_prefix_caching": [True, False]}
    _, both = plan_benchmark(Ask(spec=spec, sweep=sweep), settings)
    assert [one.spec.engine.args["enable_prefix_caching"] for one in both] == [True, False]


SUITE = """
models: [{first}, {second}]
evaluations:
  - {{spec: sums.yaml, weight: 3, tier: supporting}}
  - {{spec: sums.yaml, name: few, overrides: {{prompts.limit: 2}}}}
"""


def test_evaluations_of_a_suite_are_measured_with_every_combination(spec, settings, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.yaml").write_text(json.dumps(spec.model_dump(mode="json", exclude_none=True) | {"name": "sums"}))
    (tmp_path / "suite.yaml").write_text(SUITE.format(first=tiny_model, second="small"))
    tasks, models = load_tasks(SpecFile(file="suite.yaml", overrides={"sampling.max_tokens": 7}))
    assert [(task.name, task.weight, task.spec.sampling["max_tokens"]) for task in tasks] == [
        ("sums", 3, 7),
        ("few", 1, 7),
    ]
    assert models == [str(tiny_model), "small"]
    asked = Ask(spec="suite.yaml", sweep={"model": [str(tiny_model)], "engine.max_concurrency": [1, 2]}, repeats=2)
    plan, found = plan_benchmark(
        dataclasses.replace(asked, baseline=f"model={tiny_model}, engine.max_concurrency=2"), settings
    )
    variants = [f"model={tiny_model}, engine.max_concurrency={size}" for size in (1, 2)]
    assert [one.spec.name for one in found] == [f"{task} {variant}" for variant in variants for task in ("sums", "few")]
    assert list(plan.names.values()) == [(one.task, one.variant) for one in found]
    assert plan.baseline == variants[1]
    write_plan(plan, settings)
    assert read_plan(plan.benchmark_id, settings) == (plan, found)
    for wanted in ("3", "model=x"):
        with pytest.raises(SpecError, match=f"--baseline '{wanted}' is not a configuration: known: model="):
            plan_benchmark(dataclasses.replace(asked, baseline=wanted), settings)
    with pytest.raises(SpecError, match="--profile needs one spec, not a suite"):
        plan_benchmark(Ask(spec="suite.yaml", profile="sweep"), settings)


def test_same_command_resumes_a_benchmark_and_a_complete_or_other_or_fresh_one_is_new(spec, settings):
    def plan(is_fresh: bool = False, sizes: tuple[int, ...] = (1, 2)) -> str:
        sweep = {"engine.max_concurrency": sizes}
        asked = Ask(spec=spec, sweep=sweep, repeats=1, resume="never" if is_fresh else "auto")
        found, _ = plan_benchmark(asked, settings)
        write_plan(found, settings)
        return found.benchmark_id

    first = plan()
    for one in read_plan(first, settings)[1]:
        assert plan() == first
        run(one.spec, settings, first)
    assert plan() == first, "it lacks its report"
    (benchmark_dir(settings, first) / "report.html").touch()
    second = plan()
    assert second != first and plan() == second
    assert plan(sizes=(1, 3)) not in (first, second) and plan(is_fresh=True) not in (first, second)


def test_configurations_share_an_engine_within_a_round(spec, settings):
    plan, found = plan_benchmark(Ask(spec=spec, sweep={"engine.max_concurrency": [1, 2, 3]}, repeats=2), settings)
    happened: list[str] = []
    engines = SimpleNamespace(clear=lambda: happened.append("new engine"))

    def complete(one: EvalSpec, name: str, **how: Any) -> None:
        assert how["engines"] is engines
        happened.append(str(one.engine.max_concurrency))

    front: Any = SimpleNamespace(settings=settings, log=logging.getLogger(), complete=complete)
    assert _do_benchmark(plan, found, front, cast("Any", engines)) == {}
    assert happened == ["1", "2", "3", "new engine", "3", "2", "1"]


def test_rounds_alternate_so_that_drift_is_shared(spec, settings):
    _, found = plan_benchmark(Ask(spec=spec, sweep={"engine.max_concurrency": [1, 2, 3]}, repeats=4), settings)
    order = [one.spec.engine.max_concurrency for one in order_runs(found, 4)]
    assert order == [1, 2, 3, 3, 2, 1, 1, 2, 3, 3, 2, 1]
    times = {window: [i for i, other in enumerate(order) if other == window] for window in (1, 2, 3)}
    assert len({sum(positions) for positions in times.values()}) == 1, "on average all run at the same time"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["engine.max_concurrency"], "--sweep 'engine.max_concurrency' is not valid. hint: pass FIELD=VALUE,VALUE"),
        (["engine.max_concurrency="], "pass FIELD=VALUE"),
        (["engine.max_concurrency=1,,2"], "pass FIELD=VALUE"),
        (["=1,2"], "pass FIELD=VALUE"),
        (["engine.max_concurrency=[1, "], "pass FIELD=VALUE"),
        (["engine.max_concurrency=1", "engine.max_concurrency=2"], "names engine.max_concurrency twice"),
    ],
)
def test_sweep_rejects_invalid_fields(texts, sentence):
    with pytest.raises(SpecError, match=sentence):
        parse_sweep(texts)


@pytest.mark.parametrize(
    ("sweep", "repeats", "sentence"),
    [
        (
            {"engine.max_concurency": [1]},
            1,
            r"engine.max_concurency=1 is not a valid spec:\n.*did you mean 'max_concurrency'\?",
        ),
        ({"engine.max_concurrency": ["many"]}, 1, "engine.max_concurrency: given 'many'"),
        ({"engine.max_concurrency": [4, 4]}, 1, "are the same configuration"),
        ({"name": ["a", "b"]}, 1, "differ affect neither answers nor speed"),
        ({"gate.max_accuracy_drop": [0.1, 0.2]}, 1, "are the same configuration"),
        ({}, 0, "--repeats 0 is below 1"),
    ],
)
def test_read_plan_rejects_an_invalid_plan(sweep, repeats, sentence, spec, settings):
    with pytest.raises(SpecError, match=sentence):
        plan_benchmark(Ask(spec=spec, sweep=sweep, repeats=repeats), settings)


def test_list_left_skips_completed_runs(spec, settings):
    plan, (one, two) = plan_benchmark(Ask(spec=spec, sweep={"engine.max_concurrency": [1, 2]}, repeats=2), settings)
    write_plan(plan, settings)
    assert list_left(plan, [one, two], settings) == [one, two, two, one]
    run(one.spec, settings, plan.benchmark_id)
    run(two.spec, settings, plan.benchmark_id)
    run(two.spec, settings, "another benchmark")
    begin_and_vanish(two.spec, settings, 1)
    again, found = read_plan(plan.benchmark_id, settings)
    assert again == plan and found == [one, two]
    assert list_left(again, found, settings) == [two, one]
    assert count_done(plan.benchmark_id, settings) == {one.config_id: 1, two.config_id: 1}


def test_resume_rejects_a_benchmark_that_cannot_continue(spec, settings, monkeypatch):
    with pytest.raises(SpecError, match=r"no benchmark 'b'.*there is none yet"):
        read_plan("b", settings)
    plan, _ = plan_benchmark(Ask(spec=spec, sweep={}, repeats=1), settings)
    write_plan(plan, settings)
    with pytest.raises(SpecError, match=f"newest: {plan.benchmark_id}"):
        read_plan("b", settings)
    monkeypatch.setattr("assayline.benchmark.configurations.config_id", lambda spec, model_id: "changed")
    with pytest.raises(SpecError, match="files of a model"):
        read_plan(plan.benchmark_id, settings)
    (benchmark_dir(settings, plan.benchmark_id) / PLAN_NAME).write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        read_plan(plan.benchmark_id, settings)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["window-8", "window-32"], ["window-8", "window-32"]),
        (["models", "models"], ["configuration 0000", "configuration 1111"]),
    ],
)
def test_configurations_of_a_benchmark_have_different_labels(names, labels):
    """Also if their runs are of no plan."""
    runs = [{"config_id": str(number) * 4, "name": name, "prompt_set": "q"} for number, name in enumerate(names)]
    assert [label for _, label in name_configs(runs, None).values()] == labels
