"""The benchmark as a flow and as a command: runs of one benchmark, compared; killed, and resumed."""

import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from assayline.engines.fake import FakeEngine
from assayline.errors import EngineError, RunFailedError, SpecError
from assayline.settings import load_settings
from assayline.spec.file import parse_spec
from flows.benchmark import benchmark
from flows.cli.benchmark import run

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]
RUNS = (
    "select benchmark_id, json_extract(spec_json, '$.engine.max_concurrency')::int, state from runs order by started_at"
)


def test_repeats_of_a_sweep_are_runs_that_can_be_compared(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path
) -> None:
    state = benchmark(parse_spec(fake_spec), 5, {"engine.max_concurrency": [2, 20]}, return_state=True)
    assert state.is_completed()
    result = state.result()
    runs = flow_kit.query(data_dir, RUNS)
    assert [window for _, window, _ in runs] == [2, 20, 20, 2, 2, 20, 20, 2, 2, 20]
    assert {(benchmark_id, ended) for benchmark_id, _, ended in runs} == {(result["benchmark_id"], "completed")}
    first, second = result["measured"]
    assert (first["repeats"], second["repeats"]) == (5, 5)
    assert first["comparisons"] == {}
    assert {"output_tokens_per_s", "e2e_p95_s", "accuracy"} <= set(second["comparisons"])
    assert any(row["p_value"] for row in second["comparisons"].values())
    assert first["metrics"]["accuracy"]["median_value"] == 1.0
    compared = flow_kit.query(
        data_dir,
        "select candidate_repeats, baseline_repeats from compare_configs(?, ?) where metric = 'output_tokens_per_s'",
        second["config_id"],
        first["config_id"],
    )
    assert compared == [(5, 5)]
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    (page,) = prefect_client.read_artifacts(artifact_filter=wanted)
    assert page.key == "benchmark-trial" and "engine.max_concurrency=20" in page.data
    assert page.description in page.data.replace("\\", "") and "](data:image/svg+xml;base64," in page.data


@pytest.mark.usefixtures("prefect_client")
def test_benchmark_is_compared_while_another_program_holds_the_database(
    fake_spec: dict[str, Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAYLINE_DATABASE_WAIT_S", "0.5")
    fake_spec["prompts"]["limit"] = 5
    with flow_kit.database_held(data_dir):
        result = benchmark(parse_spec(fake_spec), 2, {"engine.max_concurrency": ["2", "4"]})
        assert [one["repeats"] for one in result["measured"]] == [2, 2]
    again = benchmark(resume=result["benchmark_id"])
    assert again["measured"] == result["measured"]
    assert flow_kit.query(data_dir, "select state, count(*) from runs group by state") == [("completed", 4)]


def test_a_configuration_that_fails_does_not_keep_the_others_from_being_measured(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = FakeEngine.generate

    def refuse(self: FakeEngine, requests: Any) -> Any:
        if self.facts.window_requests == 7:
            raise EngineError("There is no room for this.")
        return generate(self, requests)

    monkeypatch.setattr(FakeEngine, "generate", refuse)
    state = benchmark(parse_spec(fake_spec), 2, {"engine.max_concurrency": ["7", "8"]}, return_state=True)
    assert state.is_failed()
    with pytest.raises(RunFailedError, match=r"did not complete\. engine\.max_concurrency=7: .*no room.* --resume"):
        state.result()
    assert Counter((window, ended) for _, window, ended in flow_kit.query(data_dir, RUNS)) == {
        (7, "failed"): 1,
        (8, "completed"): 2,
    }


def test_plan_is_shown_and_nothing_is_run(
    fake_spec: dict[str, Any], data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    assert run([str(path), "--repeats", "3", "--sweep", "engine.max_concurrency=2,4", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "2 configurations × 3 repeats, 6 of 6 runs left" in shown and "'enable_prefix_caching': False" in shown
    assert not (data_dir / "benchmarks").exists() and not (data_dir / "runs").exists()
    for arguments, sentence in (
        ([], "Give a SPEC"),
        (["--resume", "nobody"], "There is no benchmark 'nobody'"),
        (["--resume", "nobody", "--repeats", "2"], "leave SPEC, fields and sweep out"),
    ):
        with pytest.raises(SpecError, match=sentence):
            run(arguments)


def test_killed_benchmark_goes_on_where_it_stopped(
    slow_spec: dict[str, Any], data_dir: Path, tmp_path: Path, served_env: dict[str, str], prefect_client: Any
) -> None:
    slow_spec["prompts"]["limit"] = 5
    spec = flow_kit.write_spec(tmp_path / "slow.yaml", slow_spec)
    command = [sys.executable, "-m", "flows", "benchmark"]
    begun = [*command, str(spec), "--repeats", "2", "--sweep", "engine.max_concurrency=1,2"]

    def completed() -> list[Path]:
        return [path for path in data_dir.glob("runs/*/run.json") if '"state": "completed"' in path.read_text()]

    with flow_kit.started(begun, served_env, tmp_path / "first.log") as process:
        flow_kit.wait_for(lambda: len(completed()) >= 1, 120, "a run of the benchmark is completed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    done = completed()
    assert 1 <= len(done) < 4
    (benchmark_id,) = [path.name for path in (load_settings().data_dir / "benchmarks").iterdir()]
    resumed = flow_kit.run_command([*command, "--resume", benchmark_id], served_env, timeout_s=240)
    assert resumed.code == 0, resumed.err
    assert len(completed()) == 4 and set(done) <= set(completed())
    assert Counter(window for _, window, ended in flow_kit.query(data_dir, RUNS) if ended == "completed") == {
        1: 2,
        2: 2,
    }
    assert re.search(r"engine.max_concurrency=2\s+│ output_tokens_per_s │ +2 │", resumed.out), resumed.out
    assert "too few" in resumed.out
