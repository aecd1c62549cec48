"""One real Prefect server on loopback for all flows of a session, and a model folder for those without an engine."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from run_kit import PATIENCE_S

from assayline.report.document import Document
from assayline.report.html import bundle_charts


@pytest.fixture(scope="session")
def prefect_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of Prefect's own processes: a home of its own, loopback only, nothing sent anywhere."""
    home = tmp_path_factory.mktemp("prefect-home")
    foreign = ("PREFECT_", "ASSAYLINE_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_STATIC_DIRECTORY": str(home / "ui"),
        "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",  # a test at 2:30 in Berlin would meet the nightly run
        "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
        "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
        "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
        # A request that its client gave up and repeats finds the state set already, and the flow has lost its result.
        "PREFECT_API_REQUEST_TIMEOUT": str(PATIENCE_S),
        "PREFECT_SERVER_DATABASE_TIMEOUT": str(PATIENCE_S / 2),
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": str(PATIENCE_S / 2),
        "DO_NOT_TRACK": "1",
    }


@pytest.fixture(scope="session")
def prefect_api(prefect_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Prefect server's API."""
    home = Path(prefect_env["PREFECT_HOME"])
    flow_kit.copy_prefect_database(home)
    server = flow_kit.Server(prefect_env, tmp_path_factory.mktemp("prefect-server") / "server.log")
    with server.started():
        if not flow_kit.PREFECT_DATABASE.exists():
            _keep(home / "prefect.db", flow_kit.PREFECT_DATABASE)
        yield server.url


def _keep(database: Path, kept: Path) -> None:
    """A copy of a database that is in use; two workers may make one at the same time."""
    kept.parent.mkdir(exist_ok=True)
    unfinished = kept.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(unfinished)) as target:
        source.backup(target)
    unfinished.replace(kept)


@pytest.fixture
def prefect_client(prefect_api: str, prefect_env: dict[str, str]) -> Iterator[Any]:
    """A client of the server, which the flows of this process and all its threads talk to as well."""
    from prefect import settings as prefect_settings
    from prefect.client.orchestration import get_client
    from prefect.context import refresh_global_settings_context
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    changes = {
        prefect_settings.PREFECT_API_URL: prefect_api,
        prefect_settings.PREFECT_HOME: Path(prefect_env["PREFECT_HOME"]),
        prefect_settings.PREFECT_API_REQUEST_TIMEOUT: PATIENCE_S,
        prefect_settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,  # a flow's end waits up to a second for their thread
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)  # a thread without the context would start a server of its own
        refresh_global_settings_context()
        with prefect_settings.temporary_settings(changes), get_client(sync_client=True) as client:
            yield client
            APILogWorker.drain_all(timeout=10)  # left alone, they keep sending when the server is gone
            EventsWorker.drain_all(timeout=10)
    refresh_global_settings_context()


@pytest.fixture(scope="session")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the charts' program, which takes seconds to bundle."""
    folder = tmp_path_factory.mktemp("charts")
    bundle_charts(folder)
    return folder


@pytest.fixture
def short_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of runs have a title alone, for tests that do not read them: a whole one costs as much as its run."""

    def compose(connection: Any, run_id: str, *_: Any) -> Document:
        return Document.of(run_id, "", "completed", [], [], [], f"runs/{run_id}")

    monkeypatch.setattr("assayline.report.make.compose_run", compose)


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's data folder, loaded into often; whatever process still uses it at the end is killed."""
    monkeypatch.setenv("ASSAYLINE_FLUSH_INTERVAL_S", "0.1")
    monkeypatch.setenv("ASSAYLINE_LOAD_INTERVAL_S", "0.2")
    monkeypatch.setenv("ASSAYLINE_DATABASE_WAIT_S", str(PATIENCE_S / 2))
    folder = tmp_path / "data"
    yield folder
    flow_kit.kill_all(flow_kit.processes_of(folder))


@pytest.fixture
def kept_charts(data_dir: Path, charts: Path) -> None:
    """The data folder has the charts' program already."""
    shutil.copytree(charts, data_dir / "cache")


@pytest.fixture
def command_env(data_dir: Path, prefect_env: dict[str, str]) -> dict[str, str]:
    """Environment of `assayline evaluate`, without a server."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("ASSAYLINE_")}
    return {**prefect_env, **ours}


@pytest.fixture
def alone_env(command_env: dict[str, str], data_dir: Path, kept_charts: None, empty_database: Path) -> dict[str, str]:
    """The same, with database and charts: a command is faster when it need not make them."""
    shutil.copy(empty_database, data_dir / "assayline.duckdb")
    return command_env


@pytest.fixture
def served_env(alone_env: dict[str, str], prefect_api: str) -> dict[str, str]:
    """The same, with a server: the command is a flow run."""
    return {**alone_env, "PREFECT_API_URL": prefect_api}


@pytest.fixture
def fake_spec(modest_model: Path, tmp_path: Path) -> dict[str, Any]:
    """A spec for the fake engine, as data: 40 prompts whose last word is the target."""
    return flow_kit.trial_spec(modest_model, flow_kit.write_rows(tmp_path / "sums.jsonl", 40))


@pytest.fixture
def slow_spec(fake_spec: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """One request after another, an eighth of a second each."""
    rows = flow_kit.write_rows(tmp_path / "slow.jsonl", flow_kit.SLOW_ROWS)
    fake_spec["prompts"]["source"]["path"] = str(rows)
    fake_spec["sampling"]["max_tokens"] = 1_500
    fake_spec["engine"]["max_concurrency"] = 1
    return fake_spec
