"""The specs in examples/: each can be rendered, run and scored as it is, and its commented lines are usable too."""

import json
import subprocess
from pathlib import Path
from typing import Any

import flow_kit
import jsonschema
import pytest
import yaml
from flow_kit import ROOT

from assayline.prompts import load_prompts
from assayline.run.begin import begin_evaluation
from assayline.run.drive import drive_worker
from assayline.settings import Settings
from assayline.spec.file import load_spec
from assayline.spec.prompts import HubSource
from assayline.store.database import connect

REQUESTS = {"arithmetic": 155, "gsm8k_style": 10, "json_style": 8, "mmlu_loglikelihood": 40, "mmlu_style": 10}
RENDERED = {**REQUESTS, "multi_turn": 8, "served": 155, "sharegpt_style": 4, "trace": 24}
"""With those that have no scores or need a server."""
SCORERS = {
    "arithmetic": "exact_match",
    "gsm8k_style": "numeric",
    "json_style": "json",
    "mmlu_loglikelihood": "loglikelihood",
    "mmlu_style": "choice",
}
EXAMPLES = [ROOT / "examples" / f"{name}.yaml" for name in REQUESTS]


@pytest.fixture(autouse=True)
def in_the_repository(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the paths of the examples lead somewhere."""
    assert tiny_model.is_dir()
    monkeypatch.chdir(ROOT)


def run(example: Path, settings: Settings, overrides: dict[str, str]) -> list[dict[str, Any]]:
    """A whole run without Prefect; its completions."""
    evaluation = begin_evaluation(load_spec(example, overrides), settings)
    counts = evaluation.prepare()
    drive_worker(evaluation, "worker-0")
    assert evaluation.finish(counts).answered_requests == REQUESTS[example.stem]
    return query(settings, "from completions")


def query(settings: Settings, sql: str) -> list[dict[str, Any]]:
    with connect(settings.database_path, 10, read_only=True) as connection:
        rows = connection.execute(sql)
        names = [column[0] for column in rows.description]
        return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


@pytest.mark.parametrize(("name", "requests"), RENDERED.items())
def test_a_dry_run_renders_every_row_and_starts_no_process(name, requests, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    shown = flow_kit.run_here("evaluate", ROOT / "examples" / f"{name}.yaml", "--dry-run")
    assert shown.code == 0
    assert f"{requests} requests (0 error rows)" in shown.out
    assert "Not checked: whether vLLM takes this model with these engine.args" in shown.out
    assert ("4 conversations of 1 to 3 turns, 8 in total" in shown.out) == (name == "multi_turn")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_run_on_the_fake_engine_is_scored(example, settings):
    completions = run(example, settings, {"engine.backend": "fake"})
    assert {row["error_kind"] for row in completions} == {None}
    with_options = example.stem == "mmlu_loglikelihood"
    assert all((row["option_logprob"] is not None) == with_options for row in completions)
    assert query(settings, "select distinct scorer from scores") == [{"scorer": SCORERS[example.stem]}]


@pytest.mark.parametrize("example", EXAMPLES[1:], ids=lambda path: path.stem)
def test_the_lines_for_the_whole_set_are_a_source(example):
    lines = [line.strip().removeprefix("# ") for line in example.read_text().splitlines()]
    hub = [yaml.safe_load(line)["source"] for line in lines if line.startswith("source: {kind: hub")]
    found = [HubSource.model_validate(source) for source in hub]
    assert len(found) == (2 if "few_shot" in example.read_text() else 1)


def test_the_rows_are_in_the_public_formats():
    gsm8k, mmlu, ifeval = (
        [json.loads(line) for line in (ROOT / "examples" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("gsm8k_style", "mmlu_style", "json_style")
    )
    assert all(set(row) == {"question", "answer"} and "\n#### " in row["answer"] for row in gsm8k)
    assert all(set(row) == {"question", "subject", "choices", "answer"} and len(row["choices"]) == 4 for row in mmlu)
    assert {row["answer"] for row in mmlu} == {0, 1, 2, 3}
    assert all(set(row) == {"key", "prompt", "instruction_id_list", "kwargs"} for row in ifeval)


def test_examples_of_a_prompt_are_answered_as_they_should_be():
    for prompt in load_prompts(load_spec(ROOT / "examples" / "mmlu_style.yaml").prompts):
        answers = [turn["content"] for turn in prompt.messages if turn["role"] == "assistant"]
        assert len(answers) == 2 and set(answers) <= set("ABCD")


@pytest.mark.rare
@pytest.mark.vllm
def test_every_answer_of_the_json_example_is_valid(settings):
    example = ROOT / "examples" / "json_style.yaml"
    schema = load_spec(example).sampling["structured_outputs"]["json"]
    for row in run(example, settings, {}):
        assert row["finish_reason"] == "stop", row
        jsonschema.validate(json.loads(row["text"]), schema)
    assert {row["value"] for row in query(settings, "from scores")} == {1.0}


@pytest.mark.rare
@pytest.mark.vllm
def test_the_likelihood_example_runs_on_a_real_engine(settings):
    completions = run(ROOT / "examples" / "mmlu_loglikelihood.yaml", settings, {})
    assert all(row["option_logprob"] < 0 and row["text"] is None for row in completions)
    assert len(query(settings, "from scores where value in (0, 1)")) == 10
