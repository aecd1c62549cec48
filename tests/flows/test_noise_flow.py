"""A noise measurement: pairs of runs share an engine, and the noise is printed, reported and resumed."""

import json
from typing import Any

import flow_kit
import pytest
from run_kit import complete

from assayline.benchmark.campaign import read_benchmark
from assayline.benchmark.configurations import BenchmarkAsk, plan_benchmark
from assayline.engines.fake import FakeEngine
from assayline.engines.pool import EnginePool
from assayline.errors import EngineError
from assayline.flows.evaluate import complete as complete_in_flow
from assayline.report.make import make_report
from assayline.settings import load_settings
from assayline.spec.file import parse_spec
from assayline.store.manifest import NEVER, Purpose

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_charts")]
ENGINES = """
    select runs.run_id, coalesce(details_json::json ->> '$.kept_from', runs.run_id)
    from engine_events join runs using (run_id)
    where event = 'opened' and benchmark_id is not null and state = 'completed'
    order by started_at
"""


def number_engines(data_dir: Any) -> list[int]:
    """Number the engines of the completed runs by their first use."""
    engines = [engine for _, engine in flow_kit.query(data_dir, ENGINES)]
    return [list(dict.fromkeys(engines)).index(engine) for engine in engines]


def test_failed_measurement_is_resumed_with_new_pairs_and_comparisons_show_the_noise(
    fake_spec, data_dir, tmp_path, monkeypatch
):
    generate, begun = FakeEngine.generate, []

    def fail_second(self: FakeEngine, requests: Any) -> Any:
        begun.append(self)
        if len(begun) == 2:
            raise EngineError("There is no room for this.")
        return generate(self, requests)

    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "generate", fail_second)
        spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
        failed = flow_kit.run_here("benchmark", spec)
        assert failed.code == 7 and "did not complete" in failed.err
    (folder,) = (data_dir / "benchmarks").iterdir()
    assert read_benchmark(folder.name, load_settings()).runs_per_engine == 2
    measured = flow_kit.run_here("benchmark", "--resume", folder.name)
    assert number_engines(data_dir) == [0, 1, 1, 2, 2]
    assert "5 equal runs on 3 engines." in measured.out
    assert "noise floor" in measured.out and "measure again" in measured.out
    assert "Answers to 0 of 40 prompts differ between these equal runs, and the scores of 0." in measured.out
    page = (folder / "report.md").read_text()
    assert "## Noise" in page and "5 equal runs on 3 engines" in page
    later = complete(parse_spec(fake_spec), load_settings(), NEVER).run_id
    configs = flow_kit.query(data_dir, "select distinct config_id from runs")
    assert len(configs) == 1, "the spec is measured as given"
    (first,) = flow_kit.query(data_dir, "select min(run_id) from runs where state = 'completed'")
    written = make_report(load_settings(), later, first)
    assert " × noise |" in written.text and "two equal runs of one session exceed in at most 5%" in written.text


@pytest.mark.rare
@pytest.mark.prefect
def test_flow_runs_hand_an_engine_on_and_store_no_parameter_of_it(prefect_client, fake_spec, data_dir):
    fake_spec["prompts"]["limit"] = 4
    purpose = Purpose(kind="benchmark", resume=NEVER, campaign_id="noise", is_measured=True)
    with EnginePool() as engines:
        for number in range(2):
            complete_in_flow(parse_spec(fake_spec), purpose, f"run {number}", engines)
    assert number_engines(data_dir) == [0, 0]
    stored = {name for run in prefect_client.read_flow_runs() for name in run.parameters}
    assert "spec" in stored and "engines" not in stored


@pytest.mark.parametrize(
    ("engine", "more", "shared"),
    [
        ({"backend": "fake"}, {}, 2),
        ({"backend": "offline"}, {}, 2),
        ({"backend": "async"}, {}, 2),
        ({"backend": "server"}, {}, 0),
        ({"backend": "fake"}, {"workers": 2}, 0),
        ({"backend": "fake"}, {"runner": "ray"}, 0),
        ({"backend": "offline", "args": {"distributed_executor_backend": "ray"}}, {}, 0),
    ],
    ids=json.dumps,
)
def test_plan_benchmark_of_one_configuration_shares_engines_that_can_be_kept(fake_spec, data_dir, engine, more, shared):
    spec = parse_spec({**fake_spec, "engine": {**fake_spec["engine"], **engine}, **more})
    plan = plan_benchmark(BenchmarkAsk(spec=spec), load_settings())
    (only,) = plan.cells
    assert (plan.runs_per_engine, only.repeats) == (shared, 5)
    assert only.spec.engine == spec.engine
