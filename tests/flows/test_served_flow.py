"""`assayline evaluate` against a server that runs: answers, and a sentence where there is none."""

from pathlib import Path
from typing import Any

import flow_kit
import pytest
from server_kit import FakeServer

pytestmark = pytest.mark.prefect


def write_spec(path: Path, url: str, **server: Any) -> Path:
    rows = [{"prompt": f"Count {i}", "target": "One two three four"} for i in range(12)]
    spec = {
        "name": "served",
        "model": "fake-model",
        "prompts": {"source": {"kind": "inline", "rows": rows}},
        "engine": {"backend": "server", "server": {"url": url, "endpoint": "chat", **server}},
    }
    return flow_kit.write_spec(path / "served.yaml", spec)


def test_a_flow_evaluates_a_server_and_never_stores_its_key(served_env, data_dir, tmp_path):
    key = "sk-open-sesame-314159"
    with FakeServer(key=key).running() as server:
        spec = write_spec(tmp_path, server.url, api_key_env="SESAME")
        run = flow_kit.run_command(flow_kit.evaluate_command(spec), {**served_env, "SESAME": key})
    assert run.code == 0, run.err
    assert flow_kit.query(data_dir, "select ok_requests, accuracy from main.run") == [(12, 1.0)]
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    stored = [path for path in data_dir.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert stored == [] and key not in run.out + run.err


@pytest.mark.usefixtures("prefect_client", "kept_charts")
def test_unreachable_server_prints_a_message_and_sets_the_exit_code(tmp_path):
    url = f"http://127.0.0.1:{flow_kit.free_port()}/v1"
    run = flow_kit.run_here("evaluate", write_spec(tmp_path, url))
    assert run.code == 5
    assert f"No server can be reached at {url}" in run.err and "Traceback" not in run.out + run.err


def test_a_dry_run_shows_the_messages(tmp_path):
    spec = write_spec(tmp_path, "http://127.0.0.1:9/v1")
    run = flow_kit.run_here("evaluate", spec, "--dry-run")
    assert run.code == 0, run.err
    assert "first prompt, rendered by the server:" in run.out and '"content": "Count 0"' in run.out
