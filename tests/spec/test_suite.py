"""Suites as YAML: what is refused, and which runs they are."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from run_kit import ROOT

from assayline.benchmark.campaign import write_campaign
from assayline.benchmark.suite import list_cells, plan_suite
from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec.file import load_spec
from assayline.spec.suite import load_suite, parse_suite


@pytest.fixture
def spec(modest_model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "one.yaml"
    data = {
        "name": "one",
        "model": str(modest_model),
        "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "1"}]}},
        "engine": {"backend": "fake"},
        "gate": {"baseline": "stable"},
    }
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize(
    ("suite", "problem"),
    [
        ({}, "evaluations: missing, but required"),
        ({"evaluations": []}, "at least 1 item"),
        ({"evaluations": [{"spec": "a.yaml", "tear": "critical"}]}, "did you mean 'tier'?"),
        ({"evaluations": [{"spec": "a.yaml", "tier": "vital"}]}, "'critical', 'supporting' or 'advisory'"),
        ({"evaluations": [{"spec": "a.yaml", "weight": 2}]}, "weight is for supporting evaluations"),
        ({"evaluations": [{"spec": "a.yaml", "tier": "advisory"}]}, "no evaluation counts"),
        ({"evaluations": [{"spec": "a.yaml", "repeats": 0}]}, "greater than or equal to 1"),
        ({"evaluations": [{"spec": "a.yaml"}], "model": "m"}, "did you mean 'models'?"),
    ],
)
def test_an_invalid_suite_is_refused(suite, problem):
    with pytest.raises(SpecError, match="is not a valid suite") as refused:
        parse_suite(suite)
    assert problem in str(refused.value)


def test_example_is_a_suite():
    suite = load_suite(ROOT / "examples" / "suite.yaml")
    assert [one.tier for one in suite.evaluations] == ["critical", "supporting", "advisory"]
    specs = [load_spec(ROOT / one.spec) for one in suite.evaluations]
    assert {spec.name for spec in specs} == {"arithmetic"}


def test_files_and_specs_are_named_in_errors(tmp_path, spec):
    with pytest.raises(SpecError, match=r"no\.yaml does not exist"):
        load_suite(tmp_path / "no.yaml")
    with pytest.raises(SpecError, match=r"gone\.yaml does not exist"):
        list_cells(parse_suite({"evaluations": [{"spec": str(tmp_path / "gone.yaml")}]}))
    twice = {"evaluations": [{"spec": str(spec)}, {"spec": str(spec), "tier": "advisory"}]}
    with pytest.raises(SpecError, match="Two evaluations of suite suite are called one"):
        list_cells(parse_suite(twice))
    wrong = {"evaluations": [{"spec": str(spec), "overrides": {"sampling.temprature": 1}}]}
    with pytest.raises(SpecError, match="temprature"):
        list_cells(parse_suite(wrong))


def test_each_evaluation_runs_with_each_model_and_equal_engines_follow_each_other(spec, modest_model, tmp_path):
    other = tmp_path / "other"
    other.symlink_to(modest_model)
    suite = parse_suite(
        {
            "models": [str(modest_model), str(other)],
            "evaluations": [
                {"spec": str(spec), "name": "a"},
                {"spec": str(spec), "name": "b", "overrides": {"engine.max_concurrency": 3}},
                {"spec": str(spec), "name": "c", "baseline": "run-1", "overrides": {"sampling.temperature": 0.5}},
            ],
        }
    )
    cells = list_cells(suite)
    assert [(cell.task, Path(cell.variant).name) for cell in cells] == [
        (name, model) for model in (modest_model.name, "other") for name in "acb"
    ]
    assert [cell.baseline for cell in cells[:3]] == ["stable", "run-1", "stable"]


def test_adapters_of_one_base_are_two_models(spec, modest_model, tmp_path):
    named = [f"{modest_model}:{tmp_path / name}" for name in ("first", "second")]
    for rank, name in enumerate(("first", "second"), start=1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "r": {rank}}}')
        (tmp_path / name / "adapter_model.bin").touch()
    cells = list_cells(parse_suite({"models": named, "evaluations": [{"spec": str(spec)}]}))
    assert sorted(cell.variant for cell in cells) == sorted(named)


def test_a_suite_goes_on_until_it_is_decided_or_a_spec_changes(spec, tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    suite = parse_suite({"evaluations": [{"spec": str(spec)}]})
    plan = plan_suite(suite, settings, "auto")
    assert plan_suite(suite, settings, "auto").campaign_id != plan.campaign_id, "it has not begun"
    plan.runs[plan.cells[0].key] = ["run-1"]
    write_campaign(plan, settings)
    assert plan_suite(suite, settings, "auto") == plan
    assert plan_suite(suite, settings, "never").campaign_id != plan.campaign_id
    changed = parse_suite({"evaluations": [{"spec": str(spec), "overrides": {"prompts.limit": 1}}]})
    assert plan_suite(changed, settings, "auto").campaign_id != plan.campaign_id
    write_campaign(replace(plan, is_over=True), settings)
    assert plan_suite(suite, settings, "auto").campaign_id != plan.campaign_id
    (tmp_path / "data" / "suites" / plan.campaign_id / "suite.json").write_text("{")
    assert plan_suite(suite, settings, "auto").campaign_id != plan.campaign_id, "a damaged file"
