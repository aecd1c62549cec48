"""Workers on a local Ray, and on a local Dask. Two on one run in processes of this machine are in test_kills.py."""

import json
from pathlib import Path
from typing import Any, TextIO

import flow_kit
import pytest
from record_kit import fake_spec as spec_of

from flows.live import runners

pytestmark = pytest.mark.prefect

ROWS = 60


@pytest.fixture
def slow_start(data_dir: Path, tmp_path: Path) -> Path:
    """A prompt file whose rows come when both engines are open, so that neither can take them all."""
    numbers = [(i % 10, i // 10) for i in range(ROWS)]
    lines = [json.dumps({"question": f"What is {a} + {b}?", "answer": str(a + b)}) + "\n" for a, b in numbers]

    def feed(source: TextIO) -> None:
        source.write(lines[0])
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 2, 150, "both engines are open")
        source.writelines(lines[1:])

    flow_kit.feed_pipe(tmp_path / "slow.jsonl", feed)
    return tmp_path / "slow.jsonl"


def evaluate(spec: dict[str, Any], env: dict[str, str], folder: Path) -> None:
    """Runs a spec as a command, and checks that each prompt was answered once and nothing is left running."""
    answer(spec, env, folder)
    flow_kit.assert_nothing_runs(folder / "data")


def answer(spec: dict[str, Any], env: dict[str, str], folder: Path) -> None:
    file = flow_kit.write_spec(folder / "spec.yaml", spec)
    run = flow_kit.run_command(flow_kit.evaluate_command(file), env, timeout_s=200)
    assert run.code == 0, run.out + run.err
    data_dir = folder / "data"
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    assert flow_kit.query(data_dir, "select count(distinct request_id), count(text) from completions") == [(ROWS, ROWS)]


@pytest.fixture
def ray_env(served_env: dict[str, str]) -> dict[str, str]:
    pytest.importorskip("prefect_ray")
    elsewhere = {"RAY_ADDRESS": "127.0.0.1:1"}  # a cluster that no spec names
    return {**served_env, **elsewhere, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}  # where Ray is to be found


@pytest.mark.ray
@pytest.mark.parametrize("runner", ["ray", "dask"])
def test_two_workers_on_a_cluster_share_the_prompts(
    fake_spec: dict[str, Any], slow_start: Path, ray_env: dict[str, str], tmp_path: Path, runner: str
) -> None:
    pytest.importorskip(f"prefect_{runner}")
    fake_spec |= {"workers": 2, "runner": runner, "shard_requests": 2}
    fake_spec["prompts"]["source"]["path"] = str(slow_start)
    fake_spec["engine"]["window"] = 2
    fake_spec["sampling"]["max_tokens"] = 2000  # a step costs microseconds: so many that both get their turn
    evaluate(fake_spec, ray_env, tmp_path)
    flow_kit.check_shared(tmp_path / "data")


@pytest.mark.rare
@pytest.mark.ray
@pytest.mark.vllm
def test_engine_on_ray_answers(make_spec: Any, ray_env: dict[str, str], tmp_path: Path) -> None:
    evaluate(make_spec(runner="ray", prompts={"limit": ROWS}).model_dump(mode="json"), ray_env, tmp_path)
    events = flow_kit.query(tmp_path / "data", "select worker, event from engine_events where event = 'opened'")
    assert events == [("worker-0", "opened")]
    (accuracy,) = flow_kit.query(tmp_path / "data", "select accuracy from run_summary")
    assert accuracy > 0.5


@pytest.mark.ray
def test_on_dask_a_worker_asks_for_the_gpus_that_its_engine_spans() -> None:
    """A word to Dask, which its workers must have been given; a cluster without it gets no such wish."""
    prefect_dask = pytest.importorskip("prefect_dask")
    import dask
    import distributed

    spans_two = spec_of(runner="dask", engine={"args": {"tensor_parallel_size": 2}, "device": "auto"})
    for resources, wish in (({"GPU": 4}, {"resources": {"GPU": 2}}), ({}, {})):
        options = {"processes": False, "n_workers": 1, "dashboard_address": None, "resources": resources}
        with (
            distributed.LocalCluster(**options) as cluster,
            prefect_dask.DaskTaskRunner(cluster=cluster) as runner,
            runners.placed(spans_two, runner),
        ):
            assert dask.get_annotations() == wish
