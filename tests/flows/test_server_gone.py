"""Prefect's server dies in the middle of a run: the run does not."""

import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import flow_kit
import pytest

pytestmark = pytest.mark.prefect

ROWS = 32


def test_a_server_that_dies_costs_the_page_and_no_result(
    prefect_env: dict[str, str], slow_spec: dict[str, Any], tmp_path: Path
) -> None:
    slow_spec["prompts"]["limit"] = ROWS
    port, data_dir = flow_kit.free_port(), tmp_path / "data"
    url = f"http://127.0.0.1:{port}/api"
    env = {
        **prefect_env,
        "PREFECT_API_URL": url,
        "PREFECT_CLIENT_MAX_RETRIES": "1",
        "ASSAYLINE_DATA_DIR": str(data_dir),
        "ASSAYLINE_LOCK_DIR": str(tmp_path / "locks"),
    }
    serve = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "run.log"
    with flow_kit.started(serve, prefect_env, tmp_path / "server.log") as server:

        def is_up() -> bool:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    return True
            except OSError:
                return False

        flow_kit.wait_for(is_up, 300, "Prefect's server answers")
        spec = flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec)
        with flow_kit.started(flow_kit.evaluate_command(spec), env, log) as run:
            flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 5, 120, "the first answers")
            os.killpg(server.pid, signal.SIGKILL)
            answered = flow_kit.count_in_parts(data_dir)
            assert answered < ROWS
            assert run.wait(timeout=200) == 0, log.read_text()
    said = log.read_text()
    assert "The run is complete and stored" in said and "Prefect could not be told" in said
    assert "generation window" in said, "the metrics are printed"
    assert flow_kit.query(data_dir, "select state from runs") == ["completed"]
    assert flow_kit.query(data_dir, "select count(distinct request_id) from completions") == [ROWS]
