"""A model that is split over two processes of an engine, on the cores of this machine. `make test-parallel` runs it."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_kit import ARGS
from run_kit import query

from assayline.run.begin import begin_evaluation
from assayline.run.drive import LOG, drive_worker
from assayline.run.watch import RunReport

pytestmark = pytest.mark.vllm


def test_an_engine_on_two_groups_of_cores_answers(make_spec, settings):
    """vLLM takes a group of cores per process; without them it refuses."""
    spec = make_spec(prompts={"limit": 20}, engine={"args": {**ARGS, "tensor_parallel_size": 2}})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    lines: list[str] = []
    log: Any = SimpleNamespace(info=lines.append, warning=print, debug=print)
    assert drive_worker(evaluation, "worker-0", log) == 20
    assert lines[-1].startswith("Answered 20 requests on cpu-")
    evaluation.finish(counts)
    assert query(settings, "select is_sound from request_integrity") == [(True,)]
    [(accuracy,)] = query(settings, "select accuracy from main.run")
    assert accuracy > 0.5


def test_a_rank_that_runs_out_of_memory_is_found_in_the_log(make_spec, settings, tmp_path):
    """The rank that replies waits in the collective for VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, 300 by default."""
    env = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "ASSAYLINE_FAILED_ONCE": str(tmp_path / "failed"),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    args = {**ARGS, "tensor_parallel_size": 2, "worker_cls": "host_kit.FailingWorker"}
    spec = make_spec(prompts={"limit": 20}, engine={"args": args, "env": env, "warmup": False})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    began, failed_s = time.monotonic(), []

    def note(worker: str, log: Any, event: Any) -> None:
        if event.event == "failed":
            failed_s.append(time.monotonic() - began)

    report = RunReport(LOG)
    report.hear = note  # type: ignore[method-assign]
    assert drive_worker(evaluation, "worker-0", LOG, report) == 20
    evaluation.finish(counts)
    failed = query(settings, "select details_json ->> 'kind' from engine_events where event = 'failed'")
    assert failed == [("device_oom",)]
    print("noticed after", failed_s)
