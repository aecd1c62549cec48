"""A trained judge with a planted bias, asked by vLLM: what the audit says against what was planted."""

import json
import random
from pathlib import Path
from typing import Any

import biased_judge
import flow_kit
import pytest

from assayline.flows.evaluate import evaluate

PROMPTS = 400
BETTER = 0.7
"""Share of prompts that run A answers better."""


def write_rows(folder: Path) -> Path:
    """Write prompts with both runs' answers, two different digits, and for half of them the better run as a label."""
    draw, rows = random.Random(1), []
    for number in range(PROMPTS):
        low, high = sorted(draw.sample(range(10), 2))
        is_better = number < BETTER * PROMPTS
        a, b, label = (high, low, "a") if is_better else (low, high, "b")
        rows.append({"id": f"p{number}", "a": a, "b": b, "human": label if draw.random() < 0.5 else None})
    path = folder / "digits.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.rare
@pytest.mark.vllm
@pytest.mark.prefect
@pytest.mark.usefixtures("kept_charts", "prefect_client")
def test_audit_finds_the_bias_that_a_trained_judge_learned(modest_model, data_dir, tmp_path):
    model = tmp_path / "judge-model"
    learned = biased_judge.train_judge(model)
    assert abs(learned - biased_judge.POSITION_BIAS) < 0.1
    rows, run_ids = write_rows(tmp_path), []
    for place, side in ((1, "a"), (2, "b")):
        spec = flow_kit.trial_spec(modest_model, rows)
        spec["name"] = f"side {side}"
        spec["prompts"] |= {"columns": {"id": "id", "metadata": ["human"]}, "template": "{{ id }} {{ a }} {{ b }}"}
        spec["chat"] = {"template": f"{{{{ messages[0].content.split()[{place}] }}}}"}
        run_ids.append(evaluate(spec)["run_id"])
    judge: dict[str, Any] = {
        "name": "biased",
        "model": str(model),
        "engine": {"device": "cpu", "args": {**flow_kit.SMALL_ENGINE, "max_num_seqs": 32}},
        "prompts": {"source": {"kind": "pairs", "runs": run_ids}, "template": biased_judge.QUESTION},
        "sampling": {"temperature": 1, "max_tokens": 32, "structured_outputs": {"regex": biased_judge.VERDICT}},
        "scorers": [{"kind": "verdict", "values": {"first": 1, "second": 0}, "label": "human"}],
    }
    judge_run = evaluate(judge)["run_id"]
    query = "select measure, value, low from judge_audit where judges = [?]"
    rows = flow_kit.query(data_dir, query, judge_run)
    audit = {measure: value for measure, value, _ in rows}
    print(json.dumps({"learned": learned, **audit}))
    assert audit["judged_requests"] == 2 * PROMPTS
    assert {measure: low for measure, _, low in rows}["position_bias"] > 0
    assert abs(audit["position_bias"] - learned) < 0.1
    right = 1 - biased_judge.POSITION_BIAS / 2 - biased_judge.ERRORS
    assert abs(audit["raw_share"] - (BETTER * right + (1 - BETTER) * (1 - right))) < 0.06
    assert abs(audit["sensitivity"] - right) < 0.1 and abs(audit["specificity"] - right) < 0.1
    assert abs(audit["corrected_share"] - BETTER) < 0.08
