"""Faults of a run at each of its steps: what is said, which state is left, and that the same command completes it.

Kills of real processes are in test_worker_faults.py and in tests/flows/test_kills.py.
"""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_kit import FAKE, answer_some, check_sound, complete, lose_answers, part_of, query, rows_of, vanish, work

from assayline.errors import RunFailedError, StoreError
from assayline.run.begin import Evaluation, begin_evaluation
from assayline.run.prepare import _ShardWriter
from assayline.run.rebuild import rebuild_run
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.database import connect
from assayline.store.manifest import PromptCounts, read_manifest
from assayline.store.parts import TABLES, list_parts

pytestmark = pytest.mark.slow

REQUESTS = 30


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    """Four shards; the last request of the last one does not fit the context, so its error row is its answer."""
    rows = [{"question": f"{number} + 1?" if number < REQUESTS - 1 else "1 + 1 " * 500} for number in range(REQUESTS)]
    prompts = {"source": {"kind": "inline", "rows": rows}, "columns": {}}
    found: EvalSpec = make_spec(engine=FAKE, prompts=prompts, shard_requests=8)
    return found


def check_whole(settings: Settings) -> None:
    """Every part can be read, nothing is left half written, and each request has one answer."""
    for run_dir in (settings.data_dir / "runs").glob("*"):
        for table in TABLES:
            for part in list_parts(run_dir, table):
                pq.read_table(part, partitioning=None)
    assert not list(settings.data_dir.glob("runs/*/parts/*/.*"))
    check_sound(settings, REQUESTS)


def leave_in_database(run: Evaluation) -> None:
    assert run.try_load() is None
    part_of(run, "completions", "killed-shard-000000").unlink()


def tear(run: Evaluation) -> None:
    run.settings.database_path.unlink()
    (run.run_dir / "parts" / "completions" / ".x.parquet.writing").write_bytes(b"PAR1")


class Killed(BaseException):
    """As if the process were gone."""


def remove(table: str, number: int) -> Callable[[Evaluation], object]:
    return lambda run: part_of(run, table, f"shard-{number:06d}").unlink()


def load(run: Evaluation) -> None:
    assert run.try_load() is None


def stop(run: Evaluation) -> None:
    """A run that is stopped while it prepares leaves no shard in part."""
    vanish(run)
    stopped = begin_evaluation(run.spec, run.settings)
    stopped.stop()
    counts = stopped.prepare()
    assert not counts.is_complete and list_parts(run.run_dir, "requests") == []
    with pytest.raises(RunFailedError, match="stopped before all its prompts were read"):
        stopped.finish(counts)
    stopped.abandon("failed")


Point = tuple[str, int]
"""A table and a shard, before whose part preparation is killed."""
KILLED: dict[str, tuple[list[Point], tuple[int, ...], Callable[[Evaluation], object], int]] = {
    "before a prompt": ([("prompts", 0)], (), lambda run: None, 29),
    "before a prompt, and stopped then": ([("prompts", 0)], (), stop, 29),
    "between parts, again and again": (
        [("completions", 3), ("requests", 3)], (3, 3), lambda run: None, 23),
    "between parts that are loaded": ([("completions", 3), ("requests", 3)], (), load, 29),
    "with two shards of four": ([("prompts", 2)], (3, 3), load, 23),
    "before an answer": ([], (), lambda run: None, 29),
    "with some answers": ([], (8, 3), lambda run: None, 18),
    "with every answer": ([], (8, 8, 8, 5), lambda run: None, 0),
    "with answers that only the database has": ([], (8, 3), leave_in_database, 18),
    "without a file of requests": ([], (8, 3), remove("requests", 1), 18),
    "without a file of prompts": ([], (8, 3), remove("prompts", 2), 18),
    "with a torn file and without a database": ([], (8, 3), tear, 18),
}  # fmt: skip
"""Kills while it prepares, one after another; answers by shard; what else happened; how many requests are sent then."""


def prepare_until(
    spec: EvalSpec, settings: Settings, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> Evaluation:
    """Begin a run that is killed at each point in turn, or is prepared if there is none."""
    original = _ShardWriter._put
    for table, shard in points:

        def put(self: Any, to: str, name: str, records: Any, at: Point = (table, shard)) -> None:
            if (to, int(name[-6:])) == at:
                raise Killed
            original(self, to, name, records)

        run = begin_evaluation(spec, settings)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(_ShardWriter, "_put", put)
            run.prepare()
        if (table, shard) != points[-1]:
            vanish(run)
    if not points:
        run = begin_evaluation(spec, settings)
        run.prepare()
    return run


@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_is_resumed_and_sends_only_what_has_no_answer(spec, settings, monkeypatch, case):
    points, answered, hurt, asked = KILLED[case]
    killed = prepare_until(spec, settings, points, monkeypatch)
    early = answer_some(killed, *answered)
    hurt(killed)
    vanish(killed)
    written = {part: part.stat().st_mtime_ns for part in list_parts(killed.run_dir, "requests")}
    run = begin_evaluation(spec, settings)
    assert (run.run_id, run.clock) == (killed.run_id, killed.clock), "its time goes on from the first start"
    is_prepared = not case.startswith("without a file")
    attempt = killed.manifest.attempt + ("stopped" in case) + (asked > 0)  # one that asks nothing does not count
    if not points:
        known = f"{REQUESTS - asked} of 30 requests" if is_prepared else f"{REQUESTS - asked} requests"
        assert run.notes[-1] == f"Resuming run {run.run_id}, attempt {attempt}: {known} are already answered."
        assert any("prepared prompts, requests or media are missing" in note for note in run.notes) != is_prepared
        assert [run.order(f"worker-{number}").first_generation for number in range(2)] == [4, 0]
    assert run.order("worker-0").attempt == attempt
    counts = run.prepare()
    assert (counts.requests, counts.shards, run.is_answered) == (REQUESTS, 4, asked == 0)
    assert {part: part.stat().st_mtime_ns for part in written} == written, "what is there is not written again"
    assert asked == 0 or work(run) == asked
    assert run.finish(counts).answered_requests == REQUESTS
    check_whole(settings)
    texts = query(settings, "select request_id, text, error_kind, finished_at_s from completions")
    assert sorted(name for name, text, *_ in texts if text == "early") == sorted(early)
    assert [kind for *_, kind, _ in texts if kind] == ["prompt_too_long"]
    assert all(at_s > 0 for *_, text, kind, at_s in texts if text != "early" and not kind)
    assert query(settings, "select attempt, finished_at is not null from runs") == [(attempt, True)]
    assert query(settings, "select count(*) from prompts") == [(REQUESTS,)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No byte is free in the folder's file system."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield
    ballast.unlink()


NO_SPACE, LOADS_LATER = r"No space left on device.*ree space", "assayline db rebuild {}` loads them"
INCONSISTENT = r"is inconsistent: .*8.*Expected 30 requests.*same command again, which resumes"
FAILS: list[tuple[str, str, str, str]] = [
    ("disk full", "prepare", NO_SPACE, "running"),
    ("disk full", "work", NO_SPACE, "running"),
    ("disk full", "finish", NO_SPACE, "running"),
    ("database's disk full", "finish", LOADS_LATER, "failed"),
    ("answers lost", "finish", INCONSISTENT, "failed"),
]
"""What happens, before which step, what that says, and the state that the manifest keeps."""


@pytest.mark.parametrize(("fault", "step", "sentence", "state"), FAILS)
def test_a_run_that_a_fault_stops_says_so_and_is_completed_by_the_same_command(
    spec, settings, request, fault, step, sentence, state
):
    surroundings: Any = contextlib.nullcontext()
    if "disk" in fault:
        disk = request.getfixturevalue("small_disk")
        changed = {"database": disk / "own.duckdb"} if fault.startswith("database") else {"data_dir": disk / "data"}
        settings, surroundings = settings.model_copy(update=changed), filled(disk)
    run = begin_evaluation(spec, settings)
    counts: list[PromptCounts] = []
    steps: dict[str, Any] = {
        "prepare": lambda: counts.append(run.prepare()),
        "work": lambda: work(run),
        "finish": lambda: run.finish(counts[0]),
    }
    for name in list(steps)[: list(steps).index(step)]:
        steps[name]()
    if fault == "answers lost":
        lose_answers(run, 8)
    with surroundings:
        if fault.startswith("database"):
            assert "No space left on device" in str(run.try_load()), "an obstacle, and no failure"
        with pytest.raises((StoreError, RunFailedError), match=sentence.format(run.run_id)):
            steps[step]()
        with contextlib.suppress(StoreError):
            run.abandon("failed", fault)
        assert run.dispatcher.is_stopped or step == "finish"
    manifest = read_manifest(run.run_dir)
    assert (manifest.state, manifest.is_final) == (state, False)
    kept = len(rows_of(run.run_dir, "completions"))
    assert kept == {"answers lost": REQUESTS - 8}.get(fault, kept)
    assert complete(spec, settings).run_id == run.run_id
    check_whole(settings)


def test_a_run_does_not_begin_without_space(spec, settings, small_disk):
    settings = settings.model_copy(update={"data_dir": small_disk / "data"})
    with connect(settings.database_path, 10):
        pass  # an empty database is there already
    with filled(small_disk), pytest.raises(StoreError, match="ree space"):
        begin_evaluation(spec, settings)
    assert not list((settings.data_dir / "runs").glob("*/run.json"))
    run_dir = settings.run_dir(complete(spec, settings).run_id)
    check_whole(settings)
    with filled(small_disk), pytest.raises(StoreError, match="ree space"):
        rebuild_run(run_dir, settings.database_path, 10)
    assert query(settings, "select count(*) from completions") == [(REQUESTS,)], "what was there is left"
    assert rebuild_run(run_dir, settings.database_path, 10).rows["completions"] == REQUESTS
