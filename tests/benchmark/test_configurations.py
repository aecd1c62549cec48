"""A benchmark's plan: which configurations, in which order, and what is left of it."""

import dataclasses
import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from run_kit import FAKE, begin_and_vanish, work
from run_kit import complete as complete_run

from assayline.benchmark.campaign import (
    Campaign,
    Cell,
    campaign_dir,
    count_done,
    list_left,
    read_benchmark,
    write_campaign,
)
from assayline.benchmark.configurations import BenchmarkAsk, load_tasks, parse_sweep, plan_benchmark
from assayline.benchmark.frontier import name_configs
from assayline.errors import SpecError, StoreError
from assayline.run.begin import begin_evaluation
from assayline.run.campaign import do_campaign
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile
from assayline.store.manifest import Purpose

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": [{"question": str(i)} for i in range(4)]}, "columns": {}}
    found: EvalSpec = make_spec(engine=FAKE, prompts=prompts)
    return found


def run(cell: Cell, settings: Settings, campaign: Campaign) -> Campaign:
    """The campaign with one more run, which is complete."""
    run_id = f"run-{sum(map(len, campaign.runs.values()))}"
    purpose = Purpose(kind="benchmark", campaign_id=campaign.campaign_id, run_id=run_id, is_measured=True)
    evaluation = begin_evaluation(cell.spec, settings, purpose=purpose)
    counts = evaluation.prepare()
    work(evaluation)
    evaluation.finish(counts)
    runs = {**campaign.runs, cell.key: [*campaign.runs.get(cell.key, ()), run_id]}
    write_campaign(found := dataclasses.replace(campaign, runs=runs), settings)
    return found


def cells_of(settings: Settings, **asked: Any) -> list[Cell]:
    return plan_benchmark(BenchmarkAsk(**asked), settings).cells


def test_every_combination_is_a_configuration(spec, settings):
    sweep = parse_sweep(["engine.max_concurrency=4,8", "engine.args.max_num_seqs=[16, 32]"])
    found = cells_of(settings, spec=spec, sweep=sweep, repeats=5)
    assert [(one.spec.engine.max_concurrency, one.spec.engine.args["max_num_seqs"]) for one in found] == [
        (4, 16),
        (4, 32),
        (8, 16),
        (8, 32),
    ]
    assert found[0].label == "engine.max_concurrency=4, engine.args.max_num_seqs=16"
    plain = {"engine.max_concurrency": [4, 8], "engine.args.max_num_seqs": [16, 32]}
    assert cells_of(settings, spec=spec, sweep=plain) == found
    assert len({one.config_id for one in found}) == 4


def test_without_a_sweep_there_is_one_configuration(spec, settings):
    (only,) = cells_of(settings, spec=spec)
    assert only.label == "as given" and only.repeats == 5 and only.spec.engine == spec.engine


def test_models_can_be_swept(spec, settings, tiny_model, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    found = cells_of(settings, spec=spec, sweep={"model": [str(tiny_model), str(other)]})
    assert [one.spec.model for one in found] == [str(tiny_model), str(other)]


def test_cache_is_off_unless_it_is_set(spec, settings):
    for found in cells_of(settings, spec=spec, sweep={"engine.max_concurrency": [4, 8]}):
        assert found.spec.engine.args["enable_prefix_caching"] is False and found.spec.engine.warmup
    sweep = {"engine.args.enable_prefix_caching": [True, False]}
    both = cells_of(settings, spec=spec, sweep=sweep)
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
    asked = BenchmarkAsk(
        spec="suite.yaml", sweep={"model": [str(tiny_model)], "engine.max_concurrency": [1, 2]}, repeats=2
    )
    plan = plan_benchmark(
        dataclasses.replace(asked, baseline=f"model={tiny_model}, engine.max_concurrency=2"), settings
    )
    variants = [f"model={tiny_model}, engine.max_concurrency={size}" for size in (1, 2)]
    assert [one.spec.name for one in plan.cells] == [
        f"{task} {variant}" for variant in variants for task in ("sums", "few")
    ]
    assert [(one.task, one.variant) for one in plan.cells[:2]] == [("sums", variants[0]), ("few", variants[0])]
    assert plan.baseline == variants[1]
    write_campaign(plan, settings)
    assert read_benchmark(plan.campaign_id, settings) == plan
    for wanted in ("3", "model=x"):
        with pytest.raises(SpecError, match=f"--baseline '{wanted}' is not a configuration: known: model="):
            plan_benchmark(dataclasses.replace(asked, baseline=wanted), settings)
    with pytest.raises(SpecError, match="--profile needs one spec, not a suite"):
        plan_benchmark(BenchmarkAsk(spec="suite.yaml", profile="sweep"), settings)


def test_same_command_resumes_a_benchmark_and_a_complete_or_other_or_fresh_one_is_new(spec, settings):
    def plan(is_fresh: bool = False, sizes: tuple[int, ...] = (1, 2)) -> Campaign:
        sweep = {"engine.max_concurrency": sizes}
        found = plan_benchmark(
            BenchmarkAsk(spec=spec, sweep=sweep, repeats=1, resume="never" if is_fresh else "auto"), settings
        )
        write_campaign(found, settings)
        return found

    first = plan()
    for cell in first.cells:
        run(cell, settings, plan())
    again = plan()
    assert again.campaign_id == first.campaign_id and not list_left(again, settings), "it lacks its report"
    write_campaign(dataclasses.replace(again, is_over=True), settings)
    second = plan()
    assert second.campaign_id != first.campaign_id and plan() == second
    assert len({first.campaign_id, second.campaign_id, plan(sizes=(1, 3)).campaign_id, plan(True).campaign_id}) == 4


def test_configurations_share_an_engine_within_a_round(spec, settings):
    plan = plan_benchmark(BenchmarkAsk(spec=spec, sweep={"engine.max_concurrency": [1, 2, 3]}, repeats=2), settings)
    happened: list[str] = []
    engines = SimpleNamespace(clear=lambda: happened.append("new engine"))

    def complete(one: EvalSpec, purpose: Purpose, name: str, given: Any) -> Any:
        assert given is engines and purpose.is_measured
        happened.append(str(one.engine.max_concurrency))
        return SimpleNamespace(run_id=purpose.run_id)

    front: Any = SimpleNamespace(settings=settings, log=logging.getLogger(), complete=complete)
    assert do_campaign(plan, front, cast("Any", engines)) == {}
    assert happened == ["1", "2", "3", "new engine", "3", "2", "1"]
    assert [len(run_ids) for run_ids in plan.runs.values()] == [2, 2, 2]


def test_rounds_alternate_so_that_drift_is_shared(spec, settings):
    plan = plan_benchmark(BenchmarkAsk(spec=spec, sweep={"engine.max_concurrency": [1, 2, 3]}, repeats=4), settings)
    order = [int(key[-1]) for key in plan.order]
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
        plan_benchmark(BenchmarkAsk(spec=spec, sweep=sweep, repeats=repeats), settings)


def test_list_left_skips_completed_runs(spec, settings):
    plan = plan_benchmark(BenchmarkAsk(spec=spec, sweep={"engine.max_concurrency": [1, 2]}, repeats=2), settings)
    one, two = plan.cells
    assert list_left(plan, settings) == [one, two, two, one]
    plan = run(two, settings, run(one, settings, plan))
    begin_and_vanish(two.spec, settings, 1)
    complete_run(two.spec, settings)
    again = read_benchmark(plan.campaign_id, settings)
    assert again == plan and list_left(again, settings) == [two, one], "runs of others do not count"
    assert count_done(plan, settings) == {one.key: 1, two.key: 1}


def test_resume_rejects_a_benchmark_that_cannot_continue(spec, settings, monkeypatch):
    with pytest.raises(SpecError, match=r"no benchmark 'b'.*there is none yet"):
        read_benchmark("b", settings)
    plan = plan_benchmark(BenchmarkAsk(spec=spec, repeats=1), settings)
    write_campaign(plan, settings)
    with pytest.raises(SpecError, match=f"newest: {plan.campaign_id}"):
        read_benchmark("b", settings)
    monkeypatch.setattr("assayline.benchmark.campaign.config_id", lambda spec, model_id: "changed")
    with pytest.raises(SpecError, match="files of a model"):
        read_benchmark(plan.campaign_id, settings)
    (campaign_dir(settings, "benchmark", plan.campaign_id) / "benchmark.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        read_benchmark(plan.campaign_id, settings)


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
