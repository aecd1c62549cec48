"""A load over the attempts of a run: what a worker is told of earlier ones, its end on record, its trace an input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_kit import Work, completion_of, rows_of, vanish, write_shards

from assayline.engines.base import EngineHooks
from assayline.engines.fake import FakeEngine
from assayline.engines.messages import Open
from assayline.errors import SpecError
from assayline.load.progress import LoadProgress
from assayline.records import NOT_SENT
from assayline.run.begin import begin_evaluation, plan_run
from assayline.run.order import read_shard
from assayline.run.resume import digest_inputs
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.spec.load import LoadSpec
from assayline.store.parts import list_parts, write_part


def spec_of(model: Path, arrival: dict[str, Any], **load: Any) -> EvalSpec:
    return parse_spec(
        {
            "name": "loaded",
            "model": str(model),
            "prompts": {"source": {"kind": "inline", "rows": [{"prompt": f"What is {n} + 1?"} for n in range(20)]}},
            "engine": {"backend": "async"},
            "load": {"arrival": arrival, **load},
        }
    )


CONSTANT = {"kind": "constant", "rate_per_s": 100.0}


def test_another_attempt_is_told_what_was_sent_and_why_sending_ended(tiny_model, settings):
    evaluation = begin_evaluation(spec_of(tiny_model, CONSTANT), settings)
    evaluation.prepare()
    fresh = evaluation.order("worker-0")
    assert (fresh.load.settled, fresh.load.errors, fresh.load.end) == (0, 0, None)
    [shard] = list_parts(evaluation.run_dir, "requests")
    names = [request.request_id for request in read_shard(shard)]
    rows = [
        *(completion_of(name, text="early") for name in names[:5]),
        completion_of(names[5], error_kind="timeout"),
        *(completion_of(name, error_kind=NOT_SENT, error_message="it was over") for name in names[6:9]),
        replace(completion_of("spoilt", error_kind="template_error"), worker="prepare"),
    ]
    write_part(evaluation.run_dir, "completions", "killed", rows)
    vanish(evaluation)
    order = begin_evaluation(spec_of(tiny_model, CONSTANT), settings).order("worker-0")
    assert (order.attempt, order.load.settled, order.load.errors) == (2, 6, 1)
    assert order.load.end is not None and order.load.end.message == "it was over"


class Following(FakeEngine):
    """Ends the load that it is given after three requests."""

    def __init__(self, order: Open, hooks: EngineHooks, load: LoadProgress) -> None:
        super().__init__(order, hooks)
        self._load = load

    def generate(self, requests: Any) -> Any:
        for answer in super().generate(requests):
            is_sent = self._load.admit(self._load.settled, 0.0)
            if not is_sent and not self._load.is_announced:
                self._load.is_announced = True
                self._hooks.on_load_ended(self._load.end)
            completion = answer if is_sent else replace(answer, error_kind=NOT_SENT)
            self._load.settle(completion)
            yield completion


def test_the_end_of_a_load_is_an_event_and_a_line(tmp_path, settings):
    write_shards(tmp_path, shards=2, per_shard=5)
    load = LoadSpec.model_validate({"arrival": CONSTANT, "max_requests": 7})
    shared = Work(tmp_path, settings)
    shared.spec = shared.spec.model_copy(update={"load": load})
    shared.sent_before = 4
    shared.drive(open_engine=lambda order, *given, load, **_: Following(order, given[-1], load))
    kinds = [row["error_kind"] for row in rows_of(tmp_path, "completions")]
    assert kinds.count(NOT_SENT) == 7 and kinds.count(None) == 3
    [ended] = [row for row in rows_of(tmp_path, "engine_events") if row["event"] == "load_ended"]
    assert ended["message"] in shared.notes and "load.max_requests is 7" in ended["message"]
    assert '"reason": "max_requests"' in ended["details_json"] and '"sent_requests": 7' in ended["details_json"]


def test_a_trace_is_checked_before_anything_is_made_and_is_an_input(tiny_model, settings, tmp_path):
    path = tmp_path / "trace.csv"
    spec = spec_of(tiny_model, {"kind": "trace", "path": str(path)})
    with pytest.raises(SpecError, match="does not exist"):
        plan_run(spec, settings)
    path.write_text("timestamp\n1\nsoon\n")
    with pytest.raises(SpecError, match="row 2 of the trace"):
        begin_evaluation(spec, settings)
    assert not list((settings.data_dir / "runs").glob("*"))
    path.write_text("timestamp\n1\n2\n")
    manifest = plan_run(spec, settings).fresh
    assert manifest.inputs is not None and str(path) in manifest.inputs
    before = digest_inputs(spec)
    path.write_text("timestamp\n1\n3\n")
    assert digest_inputs(spec) != before
