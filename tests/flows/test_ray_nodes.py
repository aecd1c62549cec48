"""A cluster of three Ray nodes on loopback, one of them killed in the middle: the run completes in the same attempt."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import psutil
import pytest
from assayline.runs.leases import list_owners, read_holders

pytestmark = [pytest.mark.prefect, pytest.mark.ray, pytest.mark.rare]

CLUSTER = Path(__file__).with_name("ray_cluster.py")
HEAD = "127.0.0.2"


@pytest.fixture
def env(served_env: dict[str, str]) -> dict[str, str]:
    """Nodes need the API's address in their own environment: a task takes it from there."""
    pytest.importorskip("prefect_ray")
    return {**served_env, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": "", "ASSAYLINE_LEASE_S": "5"}


@pytest.fixture
def cluster(env: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Three nodes with a core each; the cluster's address is the first line that the process prints."""
    with (tmp_path / "cluster.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(CLUSTER), "3"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def node_of(pid: int) -> str:
    """The node that a Ray task's process belongs to, by the raylet that started it."""
    for parent in psutil.Process(pid).parents():
        for word in parent.cmdline():
            if word.startswith("--node_ip_address="):
                return word.partition("=")[2]
    raise AssertionError(f"{pid} is no process of Ray")


def list_workers(data_dir: Path) -> dict[str, int]:
    """Process ids of all that had a lease in the run."""
    found: dict[str, int] = {}
    for run_dir in data_dir.glob("runs/*"):
        found.update({holder.worker: holder.pid for holder in read_holders(run_dir, list_owners(run_dir))})
    return found


def evaluate_and_kill(
    cluster: "subprocess.Popen[str]", data: dict[str, Any], requests: int, env: dict[str, str], data_dir: Path
) -> None:
    """Runs a spec with two workers, kills the node of one of them, and checks that each request has one answer."""
    folder = data_dir.parent
    data |= {"workers": 2, "runner": "ray", "ray_address": read_line(cluster), "shard_requests": 4}
    spec = flow_kit.write_spec(folder / "spec.yaml", data)
    with flow_kit.started(flow_kit.evaluate_command(spec), env, folder / "run.log") as run:
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 4, 400, "answers are stored")
        flow_kit.wait_for(lambda: len(list_workers(data_dir)) == 2, 240, "both workers are there")
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 2, 240, "both engines are open")
        nodes = {worker: node_of(pid) for worker, pid in list_workers(data_dir).items()}
        assert len(set(nodes.values())) == 2, nodes
        dead, address = next((worker, node) for worker, node in nodes.items() if node != HEAD)
        assert cluster.stdin is not None
        print(address, file=cluster.stdin, flush=True)
        assert read_line(cluster) == "killed"
        early = flow_kit.count_in_parts(data_dir)
        assert 4 <= early < requests
        assert run.wait(240) == 0, (folder / "run.log").read_text()
    counts = flow_kit.query(data_dir, "select count(*), count(distinct request_id), count(text) from completions")
    assert counts == [(requests, requests, requests)]
    summary = "select attempts, is_sound from run_summary join request_integrity using (run_id)"
    assert flow_kit.query(data_dir, summary) == [(1, True)]
    workers = flow_kit.query(data_dir, "select distinct worker from engine_events order by 1")
    assert {"worker-0", "worker-1"} < set(workers), "another one took the dead one's place, under a name of its own"
    assert dead in workers


def test_a_node_that_is_killed_costs_no_request_and_no_attempt(
    cluster: "subprocess.Popen[str]", slow_spec: dict[str, Any], env: dict[str, str], data_dir: Path
) -> None:
    evaluate_and_kill(cluster, slow_spec, flow_kit.SLOW_ROWS, env, data_dir)
    assert flow_kit.query(data_dir, "select accuracy from run_summary") == [1.0]


@pytest.mark.vllm
def test_a_node_that_is_killed_under_vllm_costs_no_request_and_changes_no_text(
    cluster: "subprocess.Popen[str]", make_spec: Any, env: dict[str, str], data_dir: Path
) -> None:
    """Each prompt is asked two dozen times, by whoever is there, and answered alike."""
    spec = make_spec(prompts={"limit": 50, "repeats": 24}).model_dump(mode="json")
    spec["engine"]["args"]["max_num_seqs"] = 1
    evaluate_and_kill(cluster, spec, 1_200, env, data_dir)
    texts = "select count(distinct text) from completions join requests using (run_id, request_id) group by prompt_id"
    assert set(flow_kit.query(data_dir, texts)) == {1}
