"""Counting a run as its rows come in."""

from dataclasses import replace

import pytest
from run_kit import completion_of

from assayline.run.progress import ALIVE, LEFT, LOST, OPENING, RATE_OVER_S, Progress


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def add(progress: Progress, *tokens: int | None, worker: str = "worker-0", kind: str = "bad") -> None:
    """Return rows with these numbers of tokens; None is an error."""
    for number, count in enumerate(tokens):
        row = completion_of(f"{number}", output_tokens=count, error_kind=kind if count is None else None)
        progress.add(replace(row, worker=worker))


def test_snapshot_counts_rows_errors_and_windows_of_all_workers():
    progress = Progress()
    for worker, window in (("worker-0", 8), ("worker-1", 4), ("worker-2", 2)):
        progress.join(worker, "cpu")
        progress.set_window(worker, window)
    add(progress, 10, None, 5)
    add(progress, 3, worker="worker-1")
    progress.lose("worker-2")
    status = progress.snapshot()
    assert (status.answered, status.errors, status.window_requests) == (4, 1, 12)
    assert [(one.worker, one.state, one.answered) for one in status.workers] == [
        ("worker-0", ALIVE, 3), ("worker-1", ALIVE, 1), ("worker-2", LOST, 0)
    ]  # fmt: skip
    progress.leave("worker-1")
    assert progress.snapshot().count(LEFT) == 1 and progress.snapshot().window_requests == 8


def test_snapshot_counts_no_error_for_what_is_not_sent_and_no_window_for_an_open_loop():
    progress = Progress()
    progress.set_window("worker-0", None)
    add(progress, 1, None, kind="not_sent")
    status = progress.snapshot()
    assert (status.answered, status.errors, status.window_requests) == (2, 0, None)
    assert (progress.sent, progress.sent_errors) == (1, 0) and status.count(OPENING) == 1


def test_snapshot_measures_the_speed_of_the_last_seconds():
    watch = Watch()
    progress = Progress(watch)
    progress.join("worker-0", "cpu")
    assert progress.snapshot().output_tokens_per_s is None
    watch.now_s += 60  # the engine loads: no time of the speed
    assert progress.snapshot().output_tokens_per_s is None
    watch.now_s += 2
    add(progress, 100, 100)
    assert progress.snapshot().output_tokens_per_s == pytest.approx(100.0)
    for _ in range(40):
        watch.now_s += 1
        add(progress, 50)
        status = progress.snapshot()
    assert status.output_tokens_per_s == pytest.approx(50.0)
    watch.now_s += RATE_OVER_S + 1
    assert progress.snapshot().output_tokens_per_s == 0.0


def test_snapshot_marks_workers_that_are_much_slower_than_the_median():
    watch = Watch()
    progress = Progress(watch)
    for worker in ("worker-0", "worker-1", "worker-2"):
        progress.join(worker, "cpu")
    progress.snapshot()
    watch.now_s += 10
    for worker, tokens in (("worker-0", 100), ("worker-1", 90), ("worker-2", 40)):
        add(progress, tokens, worker=worker)
    assert [one.is_slow for one in progress.snapshot().workers] == [False, False, True]
    progress.lose("worker-2")
    progress.join("worker-2", "cpu")
    for _ in range(2):
        watch.now_s += 1
        add(progress, 10), add(progress, 10, worker="worker-1")
        assert not any(one.is_slow for one in progress.snapshot().workers), "a new engine has not answered yet"


def test_describe_start_names_the_longest_phase_until_the_engines_are_ready():
    watch = Watch()
    progress = Progress(watch)
    assert progress.snapshot().describe_start() == ""
    progress.set_phase("worker-0", "loading weights")
    watch.now_s += 7
    assert progress.snapshot().describe_start() == "loading weights, 7 s"
    progress.set_phase("worker-1", "compiling")
    watch.now_s += 5
    assert progress.snapshot().describe_start() == "2 engines: loading weights, 12 s"
    progress.join("worker-0", "cpu")
    progress.set_phase("worker-0", "")
    assert progress.snapshot().describe_start() == "1 engine: compiling, 5 s"
    progress.lose("worker-1")
    assert progress.snapshot().describe_start() == ""
