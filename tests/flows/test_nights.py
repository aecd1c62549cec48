"""The shipped deployment `nightly`, on a server and with a worker of its own: nights that nobody starts."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

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

pytestmark = pytest.mark.prefect

WORKER_COMMAND = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "evaluations", "--type", "process"]
EVERY_MINUTE = "* * * * *"


@pytest.fixture
def data_dir(tmp_path: Path, charts: Path) -> Iterator[Path]:
    shutil.copytree(charts, tmp_path / "data" / "cache")
    yield tmp_path / "data"
    flow_kit.kill_all(flow_kit.processes_of(tmp_path / "data"))


@pytest.fixture
def env(prefect_env: dict[str, str], prefect_database: Path, data_dir: Path) -> dict[str, str]:
    """Environment of a server with an own database that schedules runs, and of its worker."""
    home = data_dir.parent / "prefect"
    home.mkdir()
    if prefect_database.exists():
        shutil.copy(prefect_database, home / "prefect.db")
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


def deploy(env: dict[str, str], folder: Path, spec: dict[str, Any], cron: str, **parameters: str) -> None:
    """Deploy the nightly run of the repository's prefect.yaml with another spec and cron."""
    shipped = yaml.safe_load((flow_kit.ROOT / "prefect.yaml").read_text())
    (nightly,) = (one for one in shipped["deployments"] if one["entrypoint"] == "assayline.flows.nightly.nightly")
    nightly["parameters"] |= {"spec": str(flow_kit.write_spec(folder / "spec.yaml", spec)), **parameters}
    nightly["schedules"][0] |= {"cron": cron}
    (folder / "prefect.yaml").write_text(yaml.safe_dump({**shipped, "deployments": [nightly]}))
    flow_kit.run_prefect(env, "work-pool", "create", "evaluations", "--type", "process")
    flow_kit.run_prefect(env, "--no-prompt", "deploy", "--all", "--prefect-file", str(folder / "prefect.yaml"))


def list_judged(data_dir: Path) -> list[str]:
    """Ids of the flow runs whose verdict is in the database, which a night has open now and then."""
    with suppress(duckdb.Error):
        return flow_kit.query(data_dir, "select flow_run_id from raw.verdicts group by all order by min(judged_at)")
    return []


@pytest.mark.parametrize("nights", [1, pytest.param(2, marks=pytest.mark.rare)])
def test_cron_starts_nights_whose_verdicts_are_stored(nights, server, env, data_dir, fake_spec, tmp_path):
    own = Settings(data_dir=data_dir, lock_dir=tmp_path / "locks")
    stable = complete(parse_spec(fake_spec), own, "never").run_id
    with connect(own.database_path, 20) as connection:
        pin_baseline(connection, data_dir, "stable", stable)
    log = tmp_path / "worker.log"
    with server.started(), flow_kit.started(WORKER_COMMAND, env, log):
        deploy(env, tmp_path, fake_spec, EVERY_MINUTE, baseline="stable")
        limit_s = 60 * nights + 90
        flow_kit.wait_for(lambda: len(list_judged(data_dir)) >= nights, limit_s, f"verdicts of {nights} nights; {log}")
        for flow_run_id in list_judged(data_dir):
            night = httpx.get(f"{server.url}/flow_runs/{flow_run_id}").json()
            assert night["auto_scheduled"] and night["created_by"]["type"] == "SCHEDULE", night
            assert night["expected_start_time"][17:19] == "00", "the cron names full minutes"
