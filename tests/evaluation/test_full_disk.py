"""A disk that is full: a sentence, no torn part, and a run that is resumed when there is space again."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_kit import FAKE, complete, query, work

from assayline.errors import StoreError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.rebuild import rebuild_run
from assayline.runs.manifest import PromptCounts, read_manifest
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.database import connect
from assayline.store.parts import TABLES, list_parts

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    found: EvalSpec = make_spec(engine=FAKE, prompts={"limit": 30}, shard_requests=8)
    return found


def check_whole_and_go_on(spec: EvalSpec, settings: Settings) -> None:
    """Every part can be read, nothing is left half written, and the same spec comes to its end."""
    for table in TABLES:
        for run_dir in (settings.data_dir / "runs").glob("*"):
            for part in list_parts(run_dir, table):
                pq.read_table(part, partitioning=None)
    assert not list(settings.data_dir.glob("runs/*/parts/*/.*"))
    complete(spec, settings)
    assert query(settings, "select state from runs") == [("completed",)]
    assert query(settings, "select count(*), count(distinct request_id) from completions") == [(30, 30)]


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


@pytest.fixture
def settings(settings: Settings, small_disk: Path) -> Settings:
    """Their data folder is on the small disk."""
    return settings.model_copy(update={"data_dir": small_disk / "data"})


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No byte is free in the folder's file system."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield
    ballast.unlink()


def test_a_run_does_not_begin_without_space(spec, settings, small_disk):
    with connect(settings.database_path, 10):
        pass  # an empty database is there already
    with filled(small_disk), pytest.raises(StoreError, match="ree space"):
        begin_evaluation(spec, settings)
    assert not list((settings.data_dir / "runs").glob("*/run.json"))
    check_whole_and_go_on(spec, settings)


@pytest.mark.parametrize("stage", ["prepare", "work", "finish"])
def test_no_space_is_left(spec, settings, small_disk, stage):
    evaluation = begin_evaluation(spec, settings)
    counts: list[PromptCounts] = []
    steps: dict[str, Any] = {
        "prepare": lambda: counts.append(evaluation.prepare()),
        "work": lambda: work(evaluation),
        "finish": lambda: evaluation.finish(counts[0]),
    }
    for name, step in steps.items():
        if name != stage:
            step()
            continue
        with filled(small_disk):
            with pytest.raises(StoreError, match=r"No space left on device.*ree space"):
                step()
            with contextlib.suppress(StoreError):
                evaluation.abandon("failed", "no space")
            assert evaluation.dispatcher.is_stopped or stage == "finish"
        break
    assert read_manifest(evaluation.run_dir).state == "running", "which is what it was when there was space"
    check_whole_and_go_on(spec, settings)


def test_a_database_without_space_is_an_obstacle_and_no_failure(spec, settings, small_disk, tmp_path):
    """The parts may be on another disk, where there is space."""
    settings = settings.model_copy(update={"data_dir": tmp_path, "database": small_disk / "own.duckdb"})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    work(evaluation)
    with filled(small_disk):
        assert "No space left on device" in str(evaluation.try_load())
        with pytest.raises(StoreError, match=rf"assayline db rebuild {evaluation.run_id}` loads them"):
            evaluation.finish(counts)
    assert read_manifest(evaluation.run_dir).state == "failed"
    assert complete(spec, settings).run_id == evaluation.run_id


def test_a_rebuild_without_space_leaves_the_database_as_it_was(spec, settings, small_disk):
    run_dir = settings.run_dir(complete(spec, settings).run_id)
    with filled(small_disk), pytest.raises(StoreError, match="ree space"):
        rebuild_run(run_dir, settings.database_path, 10)
    assert query(settings, "select count(*) from completions") == [(30,)]
    assert rebuild_run(run_dir, settings.database_path, 10).rows["completions"] == 30
