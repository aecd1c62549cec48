"""Prefect's server is gone in the middle of a run: the run completes. Deployed runs are in test_nights.py."""

import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import flow_kit
import pytest
from run_kit import PATIENCE_S

pytestmark = pytest.mark.prefect

ROWS = 32


class Relay:
    """Stands between a run and the session's server: when it closes, the run's server is gone as a killed one is."""

    def __init__(self, api: str) -> None:
        self._to = ("127.0.0.1", int(api.removesuffix("/api").rpartition(":")[2]))
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.url = f"http://127.0.0.1:{self._sockets[0].getsockname()[1]}/api"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._sockets[0].accept()
                theirs = socket.create_connection(self._to)
                self._sockets += [ours, theirs]
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def env(prefect_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return {
        **prefect_env,
        "PREFECT_CLIENT_MAX_RETRIES": "1",
        "ASSAYLINE_DATA_DIR": str(tmp_path / "data"),
        "ASSAYLINE_LOCK_DIR": str(tmp_path / "locks"),
    }


@pytest.mark.usefixtures("kept_charts")
def test_a_server_that_is_gone_costs_the_page_and_no_result(prefect_api, env, slow_spec, tmp_path):
    slow_spec["prompts"]["limit"] = ROWS
    data_dir, log = tmp_path / "data", tmp_path / "run.log"
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec)
    with closing(Relay(prefect_api)) as relay:
        # Each thing that cannot be told is tried again for seconds.
        env |= {"PREFECT_API_URL": relay.url, "PREFECT_CLIENT_MAX_RETRIES": "0"}
        with flow_kit.started(flow_kit.evaluate_command(spec), env, log) as run:
            flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 5, "the first answers")
            relay.close()
            assert flow_kit.count_in_parts(data_dir) < ROWS
            assert run.wait(PATIENCE_S) == 0, log.read_text()
    said = log.read_text()
    assert "The run is complete and stored" in said and "Prefect could not be updated" in said
    assert "load time" in said, "the metrics are printed"
    assert flow_kit.query(data_dir, "select state from runs") == ["completed"]
    assert flow_kit.query(data_dir, "select count(distinct request_id) from completions") == [ROWS]
