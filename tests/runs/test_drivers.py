"""Who drives a run in a folder that machines share, whatever its locks say."""

import contextlib
import errno
import fcntl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assayline.errors import StoreError
from assayline.runs import drivers, locks
from assayline.runs.locks import RunLock, is_worked_on, lock_run, name_holder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "BEAT_INTERVAL_S", 0.02)
    monkeypatch.setattr(drivers, "SILENCE_S", 0.5)
    monkeypatch.setattr(drivers, "_dead", set())


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on this process is on another machine, and everybody gets every lock."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    return lambda machine: monkeypatch.setattr(drivers, "boot_id", lambda: machine)


def die(lock: RunLock) -> None:
    """Nothing is said any more."""
    lock._driver.beat._ended.set()
    lock._driver.beat._thread.join()
    lock._file.close()


def test_of_two_machines_that_both_get_the_lock_one_drives(tmp_path: Path, on: Callable[[str], None]) -> None:
    on("one")
    first = lock_run(tmp_path)
    on("two")
    assert first is not None and lock_run(tmp_path) is None and is_worked_on(tmp_path)
    assert name_holder(tmp_path).startswith("process ")
    first.check()
    first.release()
    second = lock_run(tmp_path)
    assert second is not None, "who has left is not waited for"
    second.release()


def test_of_many_machines_that_take_a_run_at_once_one_drives(tmp_path: Path, on: Callable[[str], None]) -> None:
    on("unknown")
    gate = threading.Barrier(4)
    taken: list[RunLock | None] = []

    def take() -> None:
        gate.wait()
        taken.append(lock_run(tmp_path))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = filter(None, taken)
    winner.check()
    winner.release()


def test_a_driver_that_was_silent_elsewhere_finds_out_that_it_was_replaced(
    tmp_path: Path, on: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system does not show the other one's file yet."""
    on("one")
    first = lock_run(tmp_path)
    assert first is not None
    die(first)
    on("two")
    second = lock_run(tmp_path)
    assert second is not None
    second.check()
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(StoreError, match="another one has taken the run"):
        first.check()
    second.release()


def test_who_died_on_this_machine_is_known_by_its_lock_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "SILENCE_S", 1e6)
    first = lock_run(tmp_path)
    assert first is not None
    die(first)
    assert not is_worked_on(tmp_path)
    second = lock_run(tmp_path)
    assert second is not None
    second.release()


def test_a_driver_that_has_not_said_yet_who_it_is_is_there_and_one_that_never_does_is_not(
    tmp_path: Path, on: Callable[[str], None]
) -> None:
    on("one")
    (tmp_path / drivers.DRIVERS).mkdir()
    unnamed = tmp_path / drivers.DRIVERS / "000001"
    unnamed.touch()
    beat = drivers.Beat(tmp_path, "late", 0.02, folder=drivers.DRIVER_BEATS)
    beat.begin()
    threading.Timer(0.1, lambda: unnamed.write_text('{"owner": "late", "boot": "two"}')).start()
    assert lock_run(tmp_path) is None
    beat.end()
    unnamed.write_text("")
    lock = lock_run(tmp_path)
    assert lock is not None
    lock.release()


def test_a_file_system_without_locks_is_one_where_silence_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = lock_run(tmp_path)
    assert first is not None and lock_run(tmp_path) is None and is_worked_on(tmp_path)
    die(first)
    second = lock_run(tmp_path)
    assert second is not None
    with contextlib.suppress(StoreError):
        first.release()
    second.release()


@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreError("gone"), OSError("gone")])
def test_lock_run_keeps_no_lock_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, StoreError)) as kept:
        patch.setattr(locks, "take_run", fail)
        lock_run(tmp_path)
    assert kept.tb is not None, "its frames are alive, and so would be an open file"
    lock = lock_run(tmp_path)
    assert lock is not None
    lock.release()
