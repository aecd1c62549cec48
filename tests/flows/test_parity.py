"""One ask from each front end: the same plan, whatever the words of the front."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flow_kit
import pytest

from assayline import api
from assayline.benchmark.campaign import Campaign
from assayline.flows import cli
from assayline.flows.benchmark import benchmark
from assayline.run.campaign import BenchmarkResult
from assayline.run.driver import FrontEnd
from assayline.settings import load_settings
from assayline.spec.file import SpecFile

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
    "one configuration": (["sums.yaml"], {"spec": "sums.yaml"}),
}


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
    monkeypatch.setattr("assayline.benchmark.campaign.identify_spec_model", lambda spec: Named(spec.model))
    plans: dict[str, Campaign] = {}
    note = "assayline.run.campaign.run_benchmark"
    monkeypatch.setattr(note, lambda plan, front: plans.update({way: plan}) or NOTHING)
    monkeypatch.setattr("assayline.flows.benchmark.open_front", lambda: FrontEnd(load_settings()))
    monkeypatch.setattr("assayline.flows.cli.tables.print_conclusion", lambda *_: None)
    words, parameters = ASKS[ask]
    given = parameters["spec"]
    python = {**parameters, "spec": SpecFile(**given) if isinstance(given, dict) else given}
    ways: dict[str, Callable[[], object]] = {
        "command": lambda: cli.run("benchmark", words),
        "flow": lambda: benchmark.fn(**benchmark.validate_parameters(parameters)),
        "python": lambda: api.benchmark(**python),
    }
    for way, start in ways.items():
        monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / way))
        start()
    asked = {way: replace(plan, campaign_id="") for way, plan in plans.items()}
    assert asked["flow"] == asked["command"] == asked["python"]
    warm = {cell.task: cell.spec.engine.warmup for cell in plans["flow"].cells}
    assert list(warm.values()) == WARM.get(ask, [True])
    assert len(plans["flow"].cells) == {"suite with models": 4, "sweep": 2, "profile": 2}.get(ask, 1)


NOTHING = BenchmarkResult("", "", [], [], None)
WARM = {"suite with models": [True, False], "warm-up off on the way": [False], "warm-up off in the file": [False]}


class Named:
    """The identity of a model that is not there."""

    def __init__(self, name: str) -> None:
        self.model_id = self.tokenizer_id = name
