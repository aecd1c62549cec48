"""`assayline worker`: whoever starts it, it finds all it needs in the run's folder, and says if that is not there."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from run_kit import FAKE, query, vanish, work

from assayline.errors import StoreError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.orders import read_order, take_name, wait_for_flow
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    found: EvalSpec = make_spec(engine=FAKE, prompts={"limit": 30}, shard_requests=8)
    return found


@pytest.fixture
def env(settings: Settings) -> dict[str, str]:
    return {**os.environ, "ASSAYLINE_DATA_DIR": str(settings.data_dir), "ASSAYLINE_LOCK_DIR": str(settings.lock_dir)}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "flows", "worker", *map(str, arguments)]


def test_a_worker_needs_the_runs_id_alone(spec: EvalSpec, settings: Settings, env: dict[str, str]) -> None:
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    for number, run, answers in ((1, evaluation.run_id, 30), (2, evaluation.run_dir, 0)):
        ended = flow_kit.run_command(command(run), env)
        assert ended.code == 0, ended.err
        assert f"worker-{number} answered {answers} requests on none" in ended.out
    evaluation.finish(counts)
    assert query(settings, "select is_sound from request_integrity") == [(True,)]
    assert query(settings, "select distinct worker from completions") == [("worker-1",)], "worker-0 is the flow's own"
    ended = flow_kit.run_command(command(evaluation.run_id), env)
    assert ended.code == 6 and "is completed: there is nothing to answer" in ended.err


def test_a_worker_of_a_run_whose_flow_is_gone_says_so_and_can_work_alone(
    spec: EvalSpec, settings: Settings, env: dict[str, str]
) -> None:
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    assert evaluation._beat is not None
    evaluation._beat.end()
    vanish(evaluation)
    with pytest.raises(StoreError, match=r"wrote nothing there for 0\.3 s\. .*the same data folder.*--alone"):
        wait_for_flow(evaluation.run_dir, 0.3)
    ended = flow_kit.run_command(command(evaluation.run_id, "--alone"), env)
    assert ended.code == 0, ended.err
    again = begin_evaluation(spec, settings)
    assert again.is_answered and again.run_id == evaluation.run_id
    again.finish(again.prepare())


def test_a_folder_that_is_not_there_is_a_sentence(settings: Settings, env: dict[str, str], tmp_path: Path) -> None:
    ended = flow_kit.run_command(command(tmp_path / "runs" / "none"), env)
    assert ended.code == 2 and "on a file system that this machine shares" in ended.err
    (tmp_path / "empty").mkdir()
    ended = flow_kit.run_command(command(tmp_path / "empty"), env)
    assert ended.code == 6 and "has no run.json" in ended.err


def test_each_worker_has_a_name_of_its_own_in_all_attempts(spec: EvalSpec, settings: Settings) -> None:
    evaluation = begin_evaluation(spec, settings)
    assert [take_name(evaluation.run_dir) for _ in range(2)] == ["worker-1", "worker-2"]
    evaluation.abandon("cancelled")
    again = begin_evaluation(spec, settings)
    assert take_name(again.run_dir) == "worker-3"
    order = read_order(again.run_dir, settings)
    assert (order.worker, order.attempt, order.token) == ("worker-4", 2, again.order(0).token)
    again.abandon("cancelled")


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_worker_ends_when_its_run_is_stopped_or_it_is_asked_to(
    make_spec: Any, settings: Settings, env: dict[str, str], tmp_path: Path, by_signal: bool
) -> None:
    endless = make_spec(engine=FAKE, prompts={"limit": 2}, sampling={"max_tokens": 10**8})
    evaluation = begin_evaluation(endless, settings)
    evaluation.prepare()
    with flow_kit.started(command(evaluation.run_dir), env, tmp_path / "log") as worker:
        flow_kit.wait_for(lambda: list((evaluation.run_dir / "claims").iterdir()), 30, "it has claimed a shard")
        if by_signal:
            worker.send_signal(signal.SIGTERM)
        else:
            evaluation.stop()
        assert worker.wait(20) == (143 if by_signal else 0), (tmp_path / "log").read_text()
    evaluation.abandon("cancelled")


def test_a_run_of_an_earlier_assayline_is_resumed(spec: EvalSpec, settings: Settings) -> None:
    """Its queue has claims without owners, and neither leases nor a plan."""
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    vanish(evaluation)
    for name in ("leases", "beats", "done", "workers", "work.json"):
        path = evaluation.run_dir / name
        for file in path.iterdir() if path.is_dir() else ():
            file.unlink()
        path.rmdir() if path.is_dir() else path.unlink()
    (evaluation.run_dir / "claims" / "shard-000000").touch()
    (evaluation.run_dir / "queue-closed").write_text("")
    again = begin_evaluation(spec, settings)
    counts = again.prepare()
    assert work(again) == 30
    again.finish(counts)
    assert query(settings, "select is_sound from request_integrity") == [(True,)]
