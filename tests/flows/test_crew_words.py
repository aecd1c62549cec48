"""What a page, a log and a terminal say of many workers."""

import logging
from typing import Any, cast

import pytest

from assayline.errors import StoreError
from assayline.evaluation.crew import ALIVE, DEAD, LEFT, SILENT, Crew, CrewStanding, WorkerStanding
from flows.evaluate import _try_to
from flows.live import crew as crew_module
from flows.live.crew import CrewReport, describe_crew
from flows.live.progress import Progress
from flows.live.screen import count_shards, count_workers


def standing_of(*states: str, slow: int | None = None) -> CrewStanding:
    workers = [
        WorkerStanding(f"worker-{number}", "node", state, 31.0, 10, 40.0, number == slow)
        for number, state in enumerate(states)
    ]
    return CrewStanding(workers, shards=40, done=12, leased=3, taken_over=2)


def test_one_line_has_workers_shards_and_speed() -> None:
    standing = standing_of(ALIVE, ALIVE, SILENT, DEAD, LEFT, slow=1)
    assert describe_crew(standing) == (
        "2 workers, 1 silent, 1 dead, slow: worker-1; shards: 12 of 40 done, 3 leased, 2 taken over; 200 tokens/s"
    )
    assert count_workers(standing) == "2 workers (1 slow, 1 silent, 1 dead)"
    assert count_shards(standing) == "12/40 shards (2 taken over)"
    assert count_workers(standing_of(ALIVE)) == "1 worker"


def test_whoever_falls_silent_dies_returns_or_is_slow_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(CrewReport, "_send", lambda *_: None)
    looks = iter([standing_of(ALIVE), standing_of(SILENT), standing_of(DEAD), standing_of(DEAD), standing_of(ALIVE)])

    class Looked:
        def look(self, **_: Any) -> CrewStanding:
            return next(looks, standing_of(ALIVE, slow=0))

    report = CrewReport(cast(Crew, Looked()), logging.getLogger("crew"))
    for _ in range(7):
        report.look()
    assert [record.getMessage() for record in caplog.records] == [
        "worker-0 on node has been silent for 31 s",
        "worker-0 on node is taken for dead; others answer what it has not stored",
        "worker-0 on node is back",
        "worker-0 on node is slow: 40 output tokens/s, less than half of the others' median",
    ]


def test_try_to_goes_on_when_progress_cannot_be_shown(caplog: pytest.LogCaptureFixture) -> None:
    def show() -> None:
        raise StoreError("Parts of the run cannot be listed: stale handle.")

    progress = Progress(logging.getLogger("shown"))
    for _ in range(3):
        _try_to(show, progress)
    assert [line.getMessage() for line in caplog.records] == [
        "Progress is not shown, and the run continues: StoreError: Parts of the run cannot be listed: stale handle."
    ]
    with pytest.raises(KeyboardInterrupt):
        _try_to(interrupt, progress)


def interrupt() -> None:
    raise KeyboardInterrupt
