"""A model that is split over two processes of an engine, on the cores of this machine. `make test-parallel` runs it."""

from typing import Any

import pytest
from engine_helpers import ARGS
from run_kit import query

from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.worker import run_worker
from assayline.settings import Settings

pytestmark = pytest.mark.vllm


def test_an_engine_on_two_groups_of_cores_answers(make_spec: Any, settings: Settings) -> None:
    """vLLM takes a group of cores per process; without them it refuses."""
    spec = make_spec(prompts={"limit": 20}, engine={"args": {**ARGS, "tensor_parallel_size": 2}})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    report = run_worker(evaluation.order(0), print, print)
    assert report.answered_requests == 20 and report.device.startswith("cpu-")
    evaluation.finish(counts)
    assert query(settings, "select is_sound from request_integrity") == [(True,)]
    [(accuracy,)] = query(settings, "select accuracy from run_summary")
    assert accuracy > 0.5
