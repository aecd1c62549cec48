"""Runs in an object store: begun, worked on, killed and resumed, from folders that have nothing but copies."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_kit import ROOT, rows_of
from run_kit import FAKE, complete, query, settings_in, work
from store_kit import SECRET, Proxy

from assayline.errors import SpecError, StoreError
from assayline.evaluation.begin import Evaluation, begin_evaluation
from assayline.evaluation.rebuild import rebuild_run
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.worker import run_worker
from assayline.places.client import Client
from assayline.places.home import open_runs
from assayline.places.objects import Objects
from assayline.runs import drivers
from assayline.runs.locks import is_worked_on, lock_run, name_holder
from assayline.runs.manifest import find_run, read_manifest
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.parts import list_part_names
from assayline.store.takeovers import list_takeovers

pytestmark = pytest.mark.slow
LEASE_S = 1.0


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    found: EvalSpec = make_spec(engine=FAKE, prompts={"limit": 24}, shard_requests=8)
    return found


@pytest.fixture(autouse=True)
def quick_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "BEAT_INTERVAL_S", 0.2)
    monkeypatch.setattr(drivers, "SILENCE_S", 2.0)


@pytest.fixture
def at_store(settings: Settings, store: str) -> Settings:
    """Each test of this is one on moto, and one on localbucket."""
    return settings.model_copy(update={"data_url": store, "lease_s": LEASE_S})


@pytest.fixture
def at_moto(settings: Settings, proxy: Proxy, prefix: str) -> Settings:
    return settings.model_copy(update={"data_url": prefix, "lease_s": LEASE_S})


def elsewhere(settings: Settings, folder: Path) -> Settings:
    """The same store, from a machine that has nothing yet."""
    return settings.model_copy(update={"data_dir": folder / "data", "lock_dir": folder / "locks"})


def vanish(evaluation: Evaluation) -> None:
    """A killed flow: nobody says anything any more."""
    for beat in (evaluation._beat, evaluation.lock._driver.beat):
        assert beat is not None
        beat._ended.set()
        beat._thread.join()
    evaluation.lock._file.close()


def start_worker(url: str, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "ASSAYLINE_DATA_DIR": str(folder / "data"), "ASSAYLINE_LOCK_DIR": str(folder / "locks")}
    command = [sys.executable, "-m", "flows", "worker", url, *arguments]
    return subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def start_until_it_claims(url: str, folder: Path) -> "subprocess.Popen[str]":
    """A worker that has claimed a shard."""
    worker = start_worker(url, folder / "one")
    there = Objects(Client(url), folder / "copy")
    while not there.names("claims"):
        assert worker.poll() is None
        time.sleep(0.02)
    return worker


def check_each_once(settings: Settings, requests: int) -> None:
    counts = query(settings, "select count(*), count(distinct request_id) from completions")
    assert counts == [(requests, requests)]
    assert query(settings, "select is_sound from request_integrity") == [(True,)]


def test_a_run_lives_in_the_store_and_another_machine_makes_its_database(
    spec: EvalSpec, at_store: Settings, tmp_path: Path
) -> None:
    result = complete(spec, at_store)
    check_each_once(at_store, 24)
    there = Objects(Client(f"{at_store.data_url}/{result.run_id}"), tmp_path / "copy")
    assert {"run.json", "spec.json", "work.json"} <= {key for key in _keys(there) if "/" not in key}
    assert len(there.names("done")) == 3 and len(there.names("parts/requests")) == 3
    assert all("rows.parquet" in name for name in there.names("parts/completions"))
    other = elsewhere(at_store, tmp_path / "other")
    run_dir = find_run(open_runs(other.data_dir, other.data_url), result.run_id)
    rebuilt = rebuild_run(run_dir, other.database_path, 10)
    assert rebuilt.rows["completions"] == 24 and rebuilt.manifest.state == "completed"
    check_each_once(other, 24)
    tables = "select request_id, text, output_tokens from completions order by request_id"
    assert query(at_store, tables) == query(other, tables)
    shutil.rmtree(run_dir)
    assert find_run(open_runs(other.data_dir, other.data_url), result.run_id) == run_dir, "a copy can be had again"


def test_a_secret_reaches_no_file_and_no_object(spec: EvalSpec, at_moto: Settings, tmp_path: Path) -> None:
    evaluation = begin_evaluation(spec, at_moto)
    counts = evaluation.prepare()
    worker = start_worker(f"{at_moto.data_url}/{evaluation.run_id}", tmp_path / "other")
    said, _ = worker.communicate(timeout=300)
    assert worker.returncode == 0, said
    evaluation.finish(counts)
    from assayline.report.make import make_report

    make_report(at_moto, evaluation.run_id)
    there = Objects(Client(f"{at_moto.data_url}/{evaluation.run_id}"), tmp_path / "copy")
    keys = _keys(there)
    assert {"report.html", "report.md"} <= set(keys) and len(keys) > 20
    assert SECRET in os.environ["AWS_SECRET_ACCESS_KEY"] and SECRET not in said
    contents = [there.read(key) for key in keys]
    contents += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in contents if SECRET.encode() in content]


def test_workers_on_other_machines_share_a_run_by_its_url(spec: EvalSpec, at_store: Settings, tmp_path: Path) -> None:
    evaluation = begin_evaluation(spec, at_store)
    counts = evaluation.prepare()
    url = f"{at_store.data_url}/{evaluation.run_id}"
    workers = [start_worker(url, tmp_path / f"machine-{number}") for number in range(2)]
    said = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    evaluation.finish(counts)
    check_each_once(at_store, 24)
    assert not (tmp_path / "machine-0" / "data" / "assayline.duckdb").exists()
    late = start_worker(url, tmp_path / "late")
    assert "is completed: there is nothing to answer" in late.communicate(timeout=300)[0] and late.returncode == 6


@pytest.mark.rare  # tests/evaluation/test_worker_faults.py kills some in a store, too
def test_a_worker_that_is_killed_is_replaced_during_the_run(spec: EvalSpec, at_moto: Settings, tmp_path: Path) -> None:
    evaluation = begin_evaluation(spec, at_moto)
    counts = evaluation.prepare()
    url = f"{at_moto.data_url}/{evaluation.run_id}"
    killed = start_until_it_claims(url, tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    order = replace(evaluation.order(0), worker="worker-9")
    run_worker(order, lambda _: None, lambda _: None)
    evaluation.finish(counts)
    check_each_once(at_moto, 24)
    assert Counter(row["request_id"] for row in rows_of(evaluation.run_dir, "completions")).total() >= 24


def test_a_killed_flow_is_resumed_on_another_machine(spec: EvalSpec, at_store: Settings, tmp_path: Path) -> None:
    evaluation = begin_evaluation(spec, at_store)
    evaluation.prepare()
    queue = ShardQueue(evaluation.run_dir)
    assert queue.claim() is not None, "by somebody who does not come back"
    other = elsewhere(at_store, tmp_path / "other")
    runs_dir = open_runs(other.data_dir, other.data_url)
    assert is_worked_on(runs_dir / evaluation.run_id) and "process" in name_holder(runs_dir / evaluation.run_id)
    assert lock_run(runs_dir / evaluation.run_id) is None
    with pytest.raises(SpecError, match="is in use by process"):
        begin_evaluation(spec, other, evaluation.run_id)
    vanish(evaluation)
    resumed = begin_evaluation(spec, other)
    assert resumed.run_id == evaluation.run_id and resumed.manifest.attempt == 2
    with pytest.raises(StoreError, match="another one has taken the run"):
        evaluation.change(message="from the dead")
    counts = resumed.prepare()
    work(resumed)
    resumed.finish(counts)
    check_each_once(other, 24)
    assert read_manifest(resumed.run_dir).state == "completed"
    again = begin_evaluation(spec, elsewhere(at_store, tmp_path / "third"))
    assert again.run_id != evaluation.run_id, "a completed run is not resumed"
    again.abandon("cancelled")


def test_two_flows_that_take_a_run_at_once(spec: EvalSpec, at_moto: Settings) -> None:
    evaluation = begin_evaluation(spec, at_moto)
    vanish(evaluation)
    taken: list[Any] = []
    barrier = threading.Barrier(4)

    def take() -> None:
        barrier.wait()
        taken.append(drivers.take_run(evaluation.run_dir, "one of four", has_lock=False))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [driver for driver in taken if driver is not None]
    assert winner.is_last()
    winner.release()


def test_a_worker_of_the_attempt_before_writes_no_answer_that_counts_twice(
    spec: EvalSpec, at_moto: Settings, tmp_path: Path
) -> None:
    """It is stopped after it claimed, and does not know that the run was resumed elsewhere."""
    evaluation = begin_evaluation(spec, at_moto)
    evaluation.prepare()
    url = f"{at_moto.data_url}/{evaluation.run_id}"
    stopped = start_until_it_claims(url, tmp_path)
    stopped.send_signal(signal.SIGSTOP)
    vanish(evaluation)
    other = elsewhere(at_moto, tmp_path / "other")
    resumed = begin_evaluation(spec, other)
    counts = resumed.prepare()
    stopped.send_signal(signal.SIGCONT)
    work(resumed)
    stopped.communicate(timeout=300)
    resumed.finish(counts)
    check_each_once(other, 24)


def test_errors_lost_answers_and_delays_cost_time_and_no_request(
    spec: EvalSpec, at_moto: Settings, proxy: Proxy
) -> None:
    proxy.error_share, proxy.lost_share, proxy.delay_share, proxy.delay_s = 0.08, 0.05, 0.05, 0.2
    evaluation = begin_evaluation(spec, at_moto)
    counts = evaluation.prepare()
    work(evaluation)
    evaluation.finish(counts)
    check_each_once(at_moto, 24)
    assert proxy.counts["errors"] > 3 and proxy.counts["lost"] > 1


def test_a_store_that_stays_away_is_a_sentence_and_the_run_is_resumed(
    spec: EvalSpec, at_moto: Settings, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assayline.places.client.PATIENCE_S", 1.0)
    evaluation = begin_evaluation(spec, at_moto)
    evaluation.prepare()
    proxy.is_away = True
    with pytest.raises(StoreError, match=r"s3://bucket/\S+ has not answered for 1 s, .*Resume the run"):
        work(evaluation)
    with pytest.raises(StoreError):
        evaluation.abandon("failed", "the store is away")
    proxy.is_away = False
    complete(spec, at_moto, evaluation.run_id)
    check_each_once(at_moto, 24)


def test_a_run_in_a_folder_asks_no_store(spec: EvalSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    settings = settings_in(tmp_path)
    complete(spec, settings)
    check_each_once(settings, 24)


def _keys(there: Objects) -> list[str]:
    return [str(one["path"]) for page in there._client._api.list(there._client._store) for one in page]


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A beat that goes on would speak to the next test's store."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name == "beat":
            thread.join(0.1)


def test_names_tell_rows_without_a_copy(spec: EvalSpec, at_moto: Settings, tmp_path: Path, proxy: Proxy) -> None:
    result = complete(spec, at_moto)
    other = elsewhere(at_moto, tmp_path / "other")
    run_dir = find_run(open_runs(other.data_dir, other.data_url), result.run_id)
    from assayline.store.parts import count_table

    before = proxy.counts["requests"]
    assert count_table(run_dir, "completions") == 24
    assert proxy.counts["requests"] == before + 1, "one list"
    assert not (run_dir / "parts").exists() and list_part_names(run_dir, "completions")
    assert list_takeovers(run_dir) == []
