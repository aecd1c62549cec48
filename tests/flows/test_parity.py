"""One ask from each front end: the same plan, whatever the words of the front."""

import json
from pathlib import Path
from typing import Any

import flow_kit
import pytest

from assayline.flows import cli
from assayline.flows.benchmark import benchmark

ASKS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "suite with models": (["suite.yaml"], {"spec": "suite.yaml"}),
    "warm-up off on the way": (
        ["sums.yaml", "--engine.warmup", "false"],
        {"spec": {"file": "sums.yaml", "overrides": {"engine.warmup": False}}},
    ),
    "warm-up off in the file": (["cold.yaml"], {"spec": "cold.yaml"}),
    "sweep": (
        ["sums.yaml", "--sweep", "engine.max_concurrency=1,2", "--repeats", "2", "--baseline", "2"],
        {"spec": "sums.yaml", "sweep": {"engine.max_concurrency": [1, 2]}, "repeats": 2, "baseline": "2"},
    ),
    "profile": (
        ["streamed.yaml", "--profile", "sweep", "--points", "3", "--seconds", "5"],
        {"spec": "streamed.yaml", "profile": "sweep", "points": 3, "seconds": 5.0},
    ),
    "noise": (["sums.yaml", "--noise"], {"spec": "sums.yaml", "noise": True}),
}


def read_plans(data_dir: Path) -> list[Any]:
    """Plans of benchmarks, without their ids."""
    found = [json.loads(path.read_text()) for path in sorted(data_dir.glob("benchmarks/*/benchmark.json"))]
    return [{**plan, "benchmark_id": None} for plan in found]


@pytest.mark.parametrize("ask", ASKS)
def test_every_front_plans_the_same_benchmark(ask, fake_spec, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "")
    other = {**fake_spec["engine"], "warmup": False}
    flow_kit.write_spec(tmp_path / "sums.yaml", fake_spec)
    flow_kit.write_spec(tmp_path / "cold.yaml", {**fake_spec, "engine": other})
    flow_kit.write_spec(tmp_path / "streamed.yaml", {**fake_spec, "engine": {"backend": "async"}})
    cells = {"models": [str(tiny_model), "another"], "evaluations": [{"spec": "sums.yaml"}, {"spec": "cold.yaml"}]}
    cells["evaluations"][1] |= {"name": "cold", "overrides": {"prompts.limit": 3}}
    flow_kit.write_spec(tmp_path / "suite.yaml", cells)
    monkeypatch.setattr("assayline.benchmark.configurations.identify_spec_model", lambda spec: Named(spec.model))
    for name in ("assayline.run.campaign", "assayline.flows.benchmark"):
        monkeypatch.setattr(f"{name}.run_benchmark", lambda *_: {"headline": ""})
    monkeypatch.setattr("assayline.flows.benchmark.FlowFront", lambda *_: None)
    monkeypatch.setattr("assayline.flows.cli.tables.print_conclusion", lambda *_: None)
    words, parameters = ASKS[ask]
    plans = {}
    for front in ("command", "flow"):
        monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / front))
        if front == "command":
            assert cli.run("benchmark", words) == 0
        else:
            given = benchmark.validate_parameters(parameters)
            benchmark.fn(**given)
        (plans[front],) = read_plans(tmp_path / front)
    assert plans["flow"] == plans["command"]
    specs = [json.loads(one["spec_json"]) for one in plans["flow"]["tasks"] or [plans["flow"]]]
    wanted = {"suite with models": [True, False], "sweep": [True], "profile": [True], "noise": [True]}
    assert [one["engine"].get("warmup", True) for one in specs] == wanted.get(ask, [False])
    assert len(plans["flow"]["config_ids"]) == {"suite with models": 4, "sweep": 2, "profile": 2}.get(ask, 1)


class Named:
    """The identity of a model that is not there."""

    def __init__(self, name: str) -> None:
        self.model_id = self.tokenizer_id = name
