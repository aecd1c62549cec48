"""Counting a run from its part files."""

from dataclasses import replace
from pathlib import Path

import pytest
from record_kit import completion_of

from assayline.evaluation import progress
from assayline.evaluation.progress import RATE_OVER_S, Tally
from assayline.store.parts import write_part


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def write(run_dir: Path, name: str, *tokens: int | None, worker: str = "worker-0", window: int = 8) -> None:
    """A part whose answers have so many tokens; None is an error."""
    write_part(
        run_dir,
        "completions",
        name,
        [
            replace(
                completion_of(f"{name}-{i}"),
                worker=worker,
                window_requests=window,
                output_tokens=count,
                error_kind="bad" if count is None else None,
            )
            for i, count in enumerate(tokens)
        ],
    )


def test_a_run_without_parts_stands_at_nothing(tmp_path: Path) -> None:
    standing = Tally(tmp_path).count()
    assert (standing.answered, standing.errors) == (0, 0)
    assert standing.window_requests is None and standing.output_tokens_per_s is None


def test_answers_errors_and_windows_of_all_workers(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    write(tmp_path, "a", 10, None, 5)
    write(tmp_path, "b", 3, worker="worker-1", window=4)
    write(tmp_path, "c", None, worker="prepare", window=0)
    standing = tally.count()
    assert (standing.answered, standing.errors, standing.window_requests) == (5, 2, 12)
    write(tmp_path, "d", 1, window=2)
    assert tally.count().window_requests == 6


def test_what_is_not_sent_is_no_error_and_an_open_loop_has_no_window(tmp_path: Path) -> None:
    rows = [completion_of("a"), completion_of("b", error_kind="not_sent"), completion_of("c", error_kind="timeout")]
    write_part(tmp_path, "completions", "open", [replace(row, window_requests=None) for row in rows])
    standing = Tally(tmp_path).count()
    assert (standing.answered, standing.errors, standing.window_requests) == (3, 1, None)


def test_speed_is_that_of_the_last_seconds(tmp_path: Path) -> None:
    watch = Watch()
    write(tmp_path, "before", 1_000_000)
    tally = Tally(tmp_path, watch)
    assert tally.count().answered == 1
    watch.now_s += 60  # the engine loads: no time of the speed
    assert tally.count().output_tokens_per_s is None
    watch.now_s += 2
    write(tmp_path, "a", 100, 100)
    assert tally.count().output_tokens_per_s == pytest.approx(100.0)
    for second in range(40):
        watch.now_s += 1
        write(tmp_path, f"b{second}", 50)
        standing = tally.count()
    assert standing.output_tokens_per_s == pytest.approx(50.0)
    watch.now_s += RATE_OVER_S + 1
    assert tally.count().output_tokens_per_s == 0.0


def test_tally_counts_a_part_later_when_it_cannot_be_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a", 10)
    with monkeypatch.context() as patch:
        patch.setattr(progress.pq, "read_table", fail_to_read)
        tally = Tally(tmp_path)
        with pytest.raises(OSError, match="stale"):
            tally.count()
    assert tally.count().answered == 1


def fail_to_read(*_: object, **__: object) -> None:
    raise OSError(116, "stale file handle")
