"""A run whose engine answers wrongly in a crowd: its report names the requests in flight."""

from functools import partial
from typing import Any

import pytest
from run_kit import FAKE, complete, query

from assayline.engines.fake import FakeEngine
from assayline.evaluation.worker import Worker
from assayline.records import Request
from assayline.report.make import make_report

PROMPTS = 320
CROWD = 12


class CrowdedEngine(FakeEngine):
    """Its window opens and closes every few steps; with at least `limit` in flight, some answers are wrong."""

    def __init__(self, *arguments: Any, limit: int, **options: Any) -> None:
        super().__init__(*arguments, answer=self.answer_in_crowd, step_s=0.002, **options)
        self._limit = limit
        self._wrong: set[str] = set()
        self._seen: set[str] = set()

    def _step(self, live: list[Any]) -> Any:
        for running in live:
            if running.request.request_id not in self._seen and len(live) >= self._limit:
                self._wrong.add(running.request.request_id)
            self._seen.add(running.request.request_id)
        self.set_window(4 + self._steps // 8 * 7 % 17)
        return super()._step(live)

    def answer_in_crowd(self, request: Request) -> str:
        return "wrong" if request.request_id in self._wrong else "right"


def open_crowded(opened: Any, sizes: Any, setup: Any, hooks: Any, *, limit: int, **_: Any) -> FakeEngine:
    return CrowdedEngine(
        opened.clock, worker=opened.worker, generation=opened.engine_generation, window=12, hooks=hooks, limit=limit
    )


@pytest.mark.parametrize(("limit", "is_named"), [(CROWD, True), (1000, False)])
def test_report_names_requests_in_flight_when_a_crowd_corrupts_answers(settings, make_spec, limit, is_named):
    rows = [{"question": f"What is {i} + {i}?", "answer": "right" if i % 5 else "other"} for i in range(PROMPTS)]
    spec = make_spec(
        prompts={"source": {"kind": "inline", "rows": rows}}, engine={**FAKE, "args": {}}, sampling={"max_tokens": 4}
    )
    launch = partial(Worker, open_engine=partial(open_crowded, limit=limit))
    run_id = complete(spec, settings, launch=launch).run_id
    assert query(settings, "select count(*) from scores") == [(PROMPTS,)]
    text = make_report(settings, run_id).markdown.read_text(encoding="utf-8")
    assert ("Mean score depends on requests in flight" in text) == is_named
    assert ("No dependence of the score on load, engine or time was found (requests in flight" in text) == (
        not is_named
    )
    assert "depends on preemptions" not in text and "depends on worker" not in text
