"""The batch script for Slurm as it is, with a stand-in for srun that starts its tasks on this machine."""

import os
import signal
from pathlib import Path
from typing import Any

import flow_kit
import pytest

pytestmark = pytest.mark.prefect

SCRIPT = flow_kit.ROOT / "examples" / "slurm.sbatch"
STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def env(served_env: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(STAND_IN), str(flow_kit.ROOT / ".venv" / "bin"), served_env["PATH"]])
    return {**served_env, "PATH": path, "SLURM_NTASKS": "2", "ASSAYLINE_LEASE_S": "5"}


def test_a_job_that_is_requeued_resumes_its_run(
    slow_spec: dict[str, Any], env: dict[str, str], data_dir: Path, tmp_path: Path
) -> None:
    """Killed as Slurm does, by SIGTERM, with answers stored; then given again."""
    slow_spec["shard_requests"] = 4
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec)
    script = ["bash", str(SCRIPT), str(spec)]
    with flow_kit.started(script, env, tmp_path / "first.log") as job:
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 4, 120, "answers are stored")
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143, (tmp_path / "first.log").read_text()
    flow_kit.assert_nothing_runs(data_dir, 20)
    early = flow_kit.count_in_parts(data_dir)
    assert 4 <= early < flow_kit.SLOW_ROWS
    run = flow_kit.run_command(script, env, timeout_s=200)
    assert run.code == 0, run.out + run.err
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    assert flow_kit.query(data_dir, "select attempts from run_summary") == [2]
    counts = flow_kit.query(data_dir, "select count(*), count(distinct request_id) from completions")
    assert counts == [(flow_kit.SLOW_ROWS, flow_kit.SLOW_ROWS)]
    workers = flow_kit.query(data_dir, "select distinct worker from engine_events order by worker")
    assert workers == ["worker-1", "worker-2", "worker-3", "worker-4"], "two in each attempt; worker-0 is the flow's"
    flow_kit.assert_nothing_runs(data_dir, 20)


@pytest.mark.usefixtures("prefect_client", "kept_charts")
def test_a_command_that_fails_is_a_sentence(
    fake_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAYLINE_LAUNCH", "echo no such partition; exit 3")
    run = flow_kit.run_here("evaluate", flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec))
    assert run.code == 5 and "ended with exit code 3: no such partition" in run.err
