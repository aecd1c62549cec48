"""The shipped deployment `nightly` with a server and a worker: nights that nobody starts, or whose server restarts."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import duckdb
import flow_kit
import httpx
import pytest
import yaml
from run_kit import complete

from assayline.comparison.baselines import pin_baseline
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect

pytestmark = [pytest.mark.prefect, pytest.mark.rare]

WORKER_COMMAND = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "evaluations", "--type", "process"]
OFTEN, SELDOM = "* * * * * */20", "0 0 29 2 *"
"""Every 20 seconds, and every four years."""
ROWS = 32
AWAY_S, LEASE_S = 60, 240
"""Prefect renews the lease of a deployment's concurrency limit every 225 s."""


@pytest.fixture
def data_dir(tmp_path: Path, charts: Path) -> Iterator[Path]:
    shutil.copytree(charts, tmp_path / "data" / "cache")
    yield tmp_path / "data"
    flow_kit.kill_all(flow_kit.processes_of(tmp_path / "data"))


@pytest.fixture
def env(prefect_env: dict[str, str], data_dir: Path) -> dict[str, str]:
    """Environment of a server with an own database that schedules runs, and of its worker."""
    home = data_dir.parent / "prefect"
    flow_kit.copy_prefect_database(home)
    return {
        **{name: value for name, value in prefect_env.items() if "SCHEDULER" not in name},
        "PREFECT_HOME": str(home),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "ASSAYLINE_DATA_DIR": str(data_dir),
        "ASSAYLINE_LOCK_DIR": str(data_dir.parent / "locks"),
        "PWD": str(flow_kit.ROOT),
    }


@pytest.fixture
def server(env: dict[str, str], tmp_path: Path) -> flow_kit.Server:
    server = flow_kit.Server(env, tmp_path / "server.log")
    env["PREFECT_API_URL"] = server.url
    return server


@contextmanager
def working(server: flow_kit.Server, env: dict[str, str], log: Path) -> Iterator[None]:
    """A worker of a new pool, meanwhile."""
    pool = {"name": "evaluations", "type": "process"}
    httpx.post(f"{server.url}/work_pools/", json=pool).raise_for_status()  # its worker adds what such a pool has
    with flow_kit.started(WORKER_COMMAND, env, log):
        yield


def deploy(env: dict[str, str], folder: Path, spec: dict[str, Any], cron: str, **parameters: str) -> str:
    """Deploy the nightly run of the repository's prefect.yaml with another spec and cron; returns its name."""
    shipped = yaml.safe_load((flow_kit.ROOT / "prefect.yaml").read_text())
    (nightly,) = (one for one in shipped["deployments"] if one["entrypoint"] == "assayline.flows.nightly.nightly")
    nightly["parameters"] |= {"spec": str(flow_kit.write_spec(folder / "spec.yaml", spec)), **parameters}
    nightly["schedules"][0] |= {"cron": cron}
    (folder / "prefect.yaml").write_text(yaml.safe_dump({**shipped, "deployments": [nightly]}))
    flow_kit.run_prefect(env, "--no-prompt", "deploy", "--all", "--prefect-file", str(folder / "prefect.yaml"))
    return f"nightly/{nightly['name']}"


def list_judged(data_dir: Path) -> list[str]:
    """Ids of the flow runs whose verdict is in the database, which a night has open now and then."""
    with suppress(duckdb.Error):
        return flow_kit.query(data_dir, "select flow_run_id from raw.verdicts group by all order by min(judged_at)")
    return []


def test_cron_starts_nights_whose_verdicts_are_stored(server, env, data_dir, fake_spec, tmp_path):
    own = Settings(data_dir=data_dir, lock_dir=tmp_path / "locks")
    stable = complete(parse_spec(fake_spec), own, "never").run_id
    with connect(own.database_path, 20) as connection:
        pin_baseline(connection, data_dir, "stable", stable)
    log = tmp_path / "worker.log"
    with server.started(), working(server, env, log):
        deploy(env, tmp_path, fake_spec, OFTEN, baseline="stable")
        flow_kit.wait_for(lambda: len(list_judged(data_dir)) >= 2, f"verdicts of two nights; {log}")
        for flow_run_id in list_judged(data_dir):
            night = httpx.get(f"{server.url}/flow_runs/{flow_run_id}").json()
            assert night["auto_scheduled"] and night["created_by"]["type"] == "SCHEDULE", night
            assert night["expected_start_time"][17:19] in ("00", "20", "40"), "as the cron says"


@pytest.mark.timeout(600)
def test_a_night_outlives_its_server_which_finds_it_complete(server, env, data_dir, fake_spec, tmp_path):
    """Prompts come through a pipe: some when the server is gone, and the last when a lease would have been renewed."""
    rows = [json.dumps({"question": f"What is {i} + {i}?", "answer": f"{i}?"}) + "\n" for i in range(ROWS)]
    is_gone, is_over = threading.Event(), threading.Event()

    def feed(source: TextIO) -> None:
        source.writelines(rows[:10])
        is_gone.wait()
        source.writelines(rows[10:20])
        is_over.wait()
        source.writelines(rows[20:])

    flow_kit.feed_pipe(tmp_path / "pipe.jsonl", feed)
    fake_spec["prompts"]["source"]["path"] = str(tmp_path / "pipe.jsonl")
    fake_spec["shard_requests"] = 5
    log = tmp_path / "worker.log"
    with ExitStack() as stack:
        first = stack.enter_context(server.started())
        stack.enter_context(working(server, env, log))
        flow_kit.run_prefect(env, "deployment", "run", deploy(env, tmp_path, fake_spec, SELDOM))
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 5, f"the first answers; {log}")
        begun_s = time.monotonic()
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        is_gone.set()
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 15, "answers without a server")
        flow_kit.wait_for(lambda: time.monotonic() - begun_s > AWAY_S, "the server has been away")
        stack.enter_context(server.started())
        flow_kit.wait_for(lambda: time.monotonic() - begun_s > LEASE_S, "a lease would be renewed")
        is_over.set()
        night = {"flows": {"name": {"any_": ["nightly"]}}, "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        flow_kit.wait_for(
            lambda: httpx.post(f"{server.url}/flow_runs/filter", json=night).json(), f"the night completes; {log}"
        )
    assert flow_kit.query(data_dir, "select state, message from runs") == [("completed", None)]
    assert flow_kit.query(data_dir, "select count(*), count(distinct request_id) from completions") == [(ROWS, ROWS)]
