"""`examples/slurm.sbatch`, unchanged, on a real Slurm of three loopback nodes: `make test-slurm`.

Needs Debian's packages slurm-wlm and munge; without them it is skipped. The engine is a fake, Ray and Slurm are not.
"""

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from run_kit import PATIENCE_S, wait_for

from scripts.slurm_loopback import NODES, Slurm, is_installed

pytestmark = [
    pytest.mark.prefect,
    pytest.mark.ray,
    pytest.mark.skipif(not is_installed(), reason="no Slurm here: apt install slurm-wlm munge"),
]
pytest.importorskip("ray")
SCRIPT = str(flow_kit.ROOT / "examples" / "slurm.sbatch")
STAND_IN = Path(__file__).parent / "stand_in"
ROWS = 2_000
"""Minutes of work: Slurm looks at time limits each half minute, and they are in minutes."""
SIGNAL_S = 120
"""Seconds before the time limit at which the script's job gets SIGTERM."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path_factory.mktemp("slurm") / "own")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.run("scancel", "--me")
        wait_for(lambda: not cluster.run("squeue", "-h"), "all jobs end")
        cluster.close()


class Jobs:
    """Jobs of the script, whose run counts in the folder of the test."""

    def __init__(self, slurm: Slurm, env: dict[str, str], spec: Path, folder: Path) -> None:
        slurm.env |= {**env, "PATH": f"{STAND_IN}:{os.environ['PATH']}", "PREFECT_API_URL": ""}
        slurm.env |= {"PYTHON": sys.executable, "PYTHONPATH": str(flow_kit.ROOT)}
        self.slurm, self.spec, self.folder = slurm, spec, folder
        self.data_dir = Path(env["ASSAYLINE_DATA_DIR"])

    def submit(self, *options: str) -> str:
        output = f"--output={self.folder}/%j.out"
        shown = self.slurm.run(
            "sbatch", "--parsable", output, f"--chdir={flow_kit.ROOT}", *options, SCRIPT, str(self.spec)
        )
        assert shown.isdecimal(), shown
        return shown

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\w+)", self.slurm.run("scontrol", "show", "job", job))
        return found[1] if found else ""

    def field(self, job: str, name: str) -> str:
        found = re.search(rf"\b{name}=(\S+)", self.slurm.run("scontrol", "show", "job", job))
        return found[1] if found else ""

    def wait_for(self, job: str, *states: str, answers: int = 10**9) -> None:
        """Wait until a job is in one of these states, or its run has as many answers."""
        deadline = time.monotonic() + 4 * PATIENCE_S
        while self.state(job) not in states and flow_kit.count_in_parts(self.data_dir) < answers:
            assert time.monotonic() < deadline, self.log(job)
            time.sleep(1)

    def reach_time_limit(self, job: str) -> None:
        """Set the time limit so that the script's warning is due at once, and wait until the job waits again."""
        started = time.mktime(time.strptime(self.field(job, "StartTime"), "%Y-%m-%dT%H:%M:%S"))
        minutes = math.ceil((time.time() - started + SIGNAL_S) / 60)
        self.slurm.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
        self.wait_for(job, "PENDING", *ENDED)
        assert self.state(job) == "PENDING", self.log(job)
        self.slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=60", "StartTime=now")

    def log(self, job: str) -> str:
        return (self.folder / f"{job}.out").read_text()


@pytest.fixture
def jobs(slurm: Slurm, slow_spec: dict[str, Any], alone_env: dict[str, str], data_dir: Path, tmp_path: Path) -> Jobs:
    rows = flow_kit.write_rows(tmp_path / "many.jsonl", ROWS)
    slow_spec["prompts"]["source"]["path"] = str(rows)
    env = {**alone_env, "ASSAYLINE_DATA_DIR": str(data_dir)}
    return Jobs(slurm, env, flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec), tmp_path)


def assert_each_counts_once(jobs: Jobs, runs: int = 1) -> None:
    counted = "select count(*), count(distinct request_id), count(text) from completions group by run_id"
    assert flow_kit.query(jobs.data_dir, counted) == [(ROWS, ROWS, ROWS)] * runs
    assert flow_kit.query(jobs.data_dir, "select state from run") == ["completed"] * runs
    flow_kit.assert_nothing_runs(jobs.data_dir)


def test_job_is_requeued_at_its_time_limit_until_the_run_is_complete(jobs: Jobs) -> None:
    job = jobs.submit()
    jobs.wait_for(job, *ENDED, answers=ROWS // 8)
    jobs.reach_time_limit(job)
    jobs.wait_for(job, *ENDED)
    assert jobs.state(job) == "COMPLETED", jobs.log(job)
    assert_each_counts_once(jobs)
    assert jobs.log(job).count("Cancelled. Finished results are stored.") == 1
    (row,) = flow_kit.query(jobs.data_dir, "select job['SLURM_JOB_ID'], job['SLURM_JOB_NODELIST'], attempts from run")
    assert row == (job, "127.0.0.[2-3]", 2)
    pages = list(jobs.data_dir.glob("runs/*/report.md"))
    assert len(pages) == 1, jobs.log(job)
    assert re.search(rf"SLURM_JOB_ID *\| {job}\b", pages[0].read_text().replace("\\", ""))


def test_job_goes_on_without_a_node_that_dies(jobs: Jobs) -> None:
    job = jobs.submit("--nodes=3")
    jobs.wait_for(job, *ENDED, answers=ROWS // 8)
    jobs.slurm.kill_node(NODES[2])
    jobs.wait_for(job, *ENDED)
    assert jobs.state(job) == "COMPLETED", jobs.log(job)
    assert_each_counts_once(jobs)


def test_each_task_of_an_array_is_a_run(jobs: Jobs) -> None:
    job = jobs.submit("--array=1-2", "--nodes=1")
    for task in (f"{job}_1", f"{job}_2"):
        jobs.wait_for(task, *ENDED)
    assert_each_counts_once(jobs, runs=2)
    named = [json.loads(path.read_text())["job"] for path in jobs.data_dir.glob("runs/*/run.json")]
    assert sorted((one["SLURM_ARRAY_JOB_ID"], one["SLURM_ARRAY_TASK_ID"]) for one in named) == [(job, "1"), (job, "2")]
