"""The benchmark as a flow and as a command: runs of one benchmark, compared, and resumed after a failure."""

from collections import Counter
from typing import Any

import flow_kit
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from assayline.benchmark.configurations import BenchmarkAsk, plan_benchmark
from assayline.engines.fake import FakeEngine
from assayline.errors import EngineError, RunFailedError, SpecError
from assayline.flows.benchmark import benchmark
from assayline.flows.cli.benchmark import run
from assayline.run.campaign import run_benchmark
from assayline.run.driver import FrontEnd
from assayline.settings import load_settings
from assayline.spec.engine import BACKENDS, Backend
from assayline.spec.file import parse_spec

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]
RUNS = (
    "select benchmark_id, json_extract(spec_json, '$.engine.max_concurrency')::int, state from runs order by started_at"
)


@pytest.mark.usefixtures("short_reports")
def test_a_configuration_that_fails_keeps_no_other_from_being_measured_and_is_resumed_and_compared(
    prefect_client, fake_spec, data_dir, monkeypatch
):
    """With five repeats a side what differs is told, see test_sweep_report.py."""
    generate = FakeEngine.generate

    def refuse(self: FakeEngine, requests: Any) -> Any:
        if self.facts.window_requests == 7:
            raise EngineError("There is no room for this.")
        return generate(self, requests)

    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "generate", refuse)
        state = benchmark(parse_spec(fake_spec), 1, {"engine.max_concurrency": [7, 20]}, return_state=True)
    assert state.is_failed()
    with pytest.raises(RunFailedError, match=r"did not complete\. engine\.max_concurrency=7: .*no room.* --resume"):
        state.result()
    assert Counter((window, ended) for _, window, ended in flow_kit.query(data_dir, RUNS)) == {
        (7, "failed"): 1,
        (20, "completed"): 1,
    }
    (benchmark_id,) = [path.name for path in (data_dir / "benchmarks").iterdir()]
    state = benchmark(resume=benchmark_id, return_state=True)
    assert state.is_completed()
    result = state.result()
    completed = Counter(row for row in flow_kit.query(data_dir, RUNS) if row[2] == "completed")
    measured_once = {(benchmark_id, window, "completed"): 1 for window in (7, 20)}
    assert completed == measured_once, "what was completed is not measured again"
    first, second = result.measured
    assert (first.repeats, second.repeats) == (1, 1)
    compared = first.comparisons.keys() | second.comparisons.keys()
    assert {"output_tokens_per_s", "e2e_p95_s", "accuracy"} <= compared, "each with the best"
    assert [row["repeats"] for row in result.frontier] == [1, 1]
    assert first.metrics["accuracy"]["median_value"] == 1.0
    compared = flow_kit.query(
        data_dir,
        "select candidate_repeats, baseline_repeats from compare_configs(?, ?) where metric = 'output_tokens_per_s'",
        second.config_id,
        first.config_id,
    )
    assert compared == [(1, 1)]
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    (page,) = prefect_client.read_artifacts(artifact_filter=wanted)
    text = page.data.replace("\\", "").replace("\u00a0", " ")  # what Markdown would read as its own is escaped
    assert page.key == "benchmark-trial" and "max concurrency 20" in text
    assert page.description == state.message and page.description in text
    assert "](data:image/svg+xml;base64," in text


def test_plan_is_shown_and_nothing_is_run(fake_spec, data_dir, tmp_path, capsys):
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    assert run([str(path), "--repeats", "3", "--sweep", "engine.max_concurrency=2,4", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "2 configurations × 3 repeats, 6 of 6 runs left" in shown and '"enable_prefix_caching": false' in shown
    assert run([str(path), "--repeats", "10", "--dry-run", "--engine.max_concurrency", "4"]) == 0
    assert "1 configurations × 10 repeats, 10 of 10 runs left, 2 per engine:" in capsys.readouterr().out
    assert not (data_dir / "benchmarks").exists() and not (data_dir / "runs").exists()
    for arguments, sentence in (
        ([], "pass a SPEC"),
        (["--resume", "nobody"], "There is no benchmark 'nobody'"),
        (["--resume", "nobody", "--repeats", "2"], "leave out SPEC, fields and sweep options"),
    ):
        with pytest.raises(SpecError, match=sentence):
            run(arguments)


@pytest.mark.usefixtures("short_reports")
def test_a_missing_file_costs_its_configuration_only(fake_spec, data_dir):
    there = fake_spec["prompts"]["source"]["path"]
    sweep = {"prompts.source.path": ["gone.jsonl", there]}
    plan = plan_benchmark(BenchmarkAsk(spec=fake_spec, sweep=sweep, repeats=1), load_settings())
    with pytest.raises(RunFailedError, match=r"did not complete\. .*=gone\.jsonl: .*gone\.jsonl does not exist"):
        run_benchmark(plan, FrontEnd(load_settings()))
    assert [ended for _, _, ended in flow_kit.query(data_dir, RUNS)] == ["completed"], "the other is measured"


def test_dry_run_names_every_configuration_that_a_run_would_refuse(fake_spec, tmp_path, monkeypatch):
    """Missing prompts, a prompt set whose every row is wrong, and arguments that vLLM rejects."""
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    (tmp_path / "odd.jsonl").write_text('{"question": null, "answer": "x"}\n')
    good = fake_spec["prompts"]["source"]["path"]
    paths = f"--sweep=prompts.source.path={good},{tmp_path / 'none.jsonl'},{tmp_path / 'odd.jsonl'}"
    shown = flow_kit.run_here("benchmark", path, paths, "--dry-run")
    assert shown.code == 3 and shown.err.count("error: ") == 1
    assert f"none.jsonl: Prompt file {tmp_path / 'none.jsonl'} does not exist" in shown.err
    assert "odd.jsonl: All 1 requests would be error rows: template_error" in shown.err
    assert f"path={good}:" not in shown.err
    refusals = {"engine.args.dtype=fp16": SpecError("vLLM rejects engine.args.dtype 'fp16'")}, list[str]()
    monkeypatch.setattr("assayline.spec.engine.BACKENDS", {**BACKENDS, "fake": Backend()})
    monkeypatch.setattr("assayline.flows.cli.dry_run.find_refusals", lambda *_: refusals)
    shown = flow_kit.run_here("benchmark", path, "--sweep=engine.args.dtype=fp16,float32", "--dry-run", "engine")
    assert shown.code == 2 and "error: engine.args.dtype=fp16: vLLM rejects" in shown.err
