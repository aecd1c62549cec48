"""`assayline demo`: a user's first command, from the files of the package."""

import filecmp
from pathlib import Path

import flow_kit
import pytest
from run_kit import ROOT

DEMO = ROOT / "flows" / "cli" / "demo"


def test_demo_files_are_those_of_the_examples(tiny_model):
    assert filecmp.cmp(DEMO / "questions.jsonl", ROOT / "examples" / "arithmetic.jsonl", shallow=False)
    small = [path.name for path in (DEMO / "model").iterdir() if path.suffix != ".safetensors"]
    assert len(small) == 5
    assert all(filecmp.cmp(DEMO / "model" / name, Path(tiny_model) / name, shallow=False) for name in small)


@pytest.mark.vllm
def test_demo_ends_with_a_gate_that_fails(tmp_path, settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = flow_kit.run_here("demo", "here")
    assert shown.code == 0, shown.out + shown.err
    assert "100% correct" in shown.out and shown.out.endswith("assayline view last demo\n")
    assert "fails its limits" in shown.err
    accuracies = flow_kit.query(settings.data_dir, "select accuracy from main.run order by started_at")
    assert accuracies[0] == 1.0 and accuracies[1] < 0.97


def test_demo_of_an_import_ends_with_a_gate_that_fails(tmp_path, settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = flow_kit.run_here("demo", "--import")
    assert shown.code == 0, shown.out + shown.err
    assert "fails its limits" in shown.err and "assayline view 20261128-230559-sums-" in shown.out
    query = "select accuracy from main.run order by started_at"
    assert flow_kit.query(settings.data_dir, query) == [1.0, 0.6875, None]
    query = "select distinct messages_json from main.prompt where messages_json like '%How much is 0 plus 2?%'"
    told = "the messages are those of lm-evaluation-harness's chat"
    assert flow_kit.query(settings.data_dir, query) == ['[{"content": "How much is 0 plus 2?", "role": "user"}]'], told
