"""Judges among a spec's scorers, on fake engines, against a real Prefect server.

The fake engine answers with the last word of its prompt, so a judge's template writes the verdict that it will give.
"""

import json
from pathlib import Path
from typing import Any

import flow_kit
import pytest

from assayline.errors import JudgeNotTrustedError, SpecError
from assayline.evaluation.rescore import rescore_run
from assayline.flows import judge as judging
from assayline.flows.evaluate import evaluate
from assayline.settings import load_settings

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts", "prefect_client")]

RULE = "{{ 'correct' if answer == target else 'incorrect' }}"


def write_judge(folder: Path, fake_spec: dict[str, Any], verdict: str = RULE, name: str = "strict") -> Path:
    """Write a judge's spec. `verdict` is a template over the judged answer's columns."""
    spec = {
        "name": name,
        "model": fake_spec["model"],
        "engine": fake_spec["engine"],
        "prompts": {"source": {"kind": "run"}, "template": '{{ prompt }} {"verdict":"' + verdict + '","reason":"Read."}'},
        "scorers": [{"kind": "verdict", "values": {"correct": 1, "incorrect": 0}}],
    }  # fmt: skip
    return flow_kit.write_spec(folder / f"{name}.yaml", spec)


def judged_by(fake_spec: dict[str, Any], *specs: Path, **fields: Any) -> dict[str, Any]:
    scorer = {"kind": "judge", "name": "helpful", "spec": [str(path) for path in specs], **fields}
    return {**fake_spec, "scorers": ["exact_match", scorer]}


def read_scores(data_dir: Path, run_id: str) -> list[Any]:
    return flow_kit.query(
        data_dir,
        "select value, count(*) from scores where run_id = ? and scorer = 'helpful' group by all order by all",
        run_id,
    )


def test_judge_scores_each_answer_in_a_run_of_its_own(fake_spec, data_dir, tmp_path):
    fake_spec["prompts"]["source"]["path"] = str(write_half(tmp_path))
    result = evaluate(judged_by(fake_spec, write_judge(tmp_path, fake_spec)))
    run_id = result["run_id"]
    metrics = {row["metric"]: row["value"] for row in result["metrics"]}
    assert metrics["accuracy (exact_match)"] == metrics["accuracy (helpful)"] == 0.5
    assert read_scores(data_dir, run_id) == [(0.0, 20), (1.0, 20)]
    [(judge_run, name)] = flow_kit.query(data_dir, "select run_id, name from runs where run_id <> ?", run_id)
    assert name == "trial judged by helpful"
    assert flow_kit.query(
        data_dir,
        "select count(*), count(distinct judged_prompt_id), any_value(judge_run_id) from judgement "
        "where judged_run_id = ? and status = 'judged'",
        run_id,
    ) == [(40, 40, judge_run)]


def write_half(folder: Path) -> Path:
    """Write 40 prompts, of which every other one has a target that the fake engine does not answer."""
    path = folder / "half.jsonl"
    rows = [{"question": f"{n} + 1 is {n + 1}", "answer": str(n + 1 + n % 2), "human": n % 3 == 0} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
