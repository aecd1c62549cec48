"""A sweep from a command to its report, against a server: ends, rates between, one engine; killed and resumed."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from run_kit import PATIENCE_S
from server_kit import FakeServer, Script

from assayline.flows.cli import run

pytestmark = pytest.mark.prefect
COMMAND = [sys.executable, "-m", "assayline", "benchmark"]
POINTS = """
    select runs.name, loads.arrival, run.requests_per_s, runs.state, run.ok_requests + run.error_requests
    from runs join loads using (run_id) join main.run using (run_id)
    order by runs.started_at
"""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Take a fifth of a second for an answer, regardless of load."""
    with FakeServer().running() as running:
        running.default = Script(delay_s=0.2)
        yield running


@pytest.fixture
def spec(server: FakeServer, tmp_path: Path) -> Path:
    rows = [{"prompt": f"Count {i}"} for i in range(10)]
    data: dict[str, Any] = {
        "name": "served",
        "model": "fake-model",
        "prompts": {"source": {"kind": "inline", "rows": rows}},
        "slos": [{"name": "quick", "e2e_s": 30}],
        "engine": {"backend": "server", "server": {"url": server.url, "endpoint": "chat"}},
    }
    return flow_kit.write_spec(tmp_path / "served.yaml", data)


def read_plan(data_dir: Path) -> dict[str, Any]:
    (path,) = data_dir.glob("benchmarks/*/benchmark.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.rare
def test_a_killed_sweep_goes_on_with_the_rates_that_it_had(spec, server, served_env, data_dir, tmp_path):
    """Its ends, then the rates between, on one engine until it is killed; and its report at the end."""
    begun = [*COMMAND, str(spec), "--profile", "sweep", "--points", "2", "--requests", "6"]

    def completed() -> list[Path]:
        return [path for path in data_dir.glob("runs/*/run.json") if '"state": "completed"' in path.read_text()]

    with flow_kit.started(begun, served_env, tmp_path / "first.log") as process:
        flow_kit.wait_for(lambda: len(completed()) >= 3, "a rate is measured")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    before, rates = set(completed()), read_plan(data_dir)["profile"]["rates_per_s"]
    flow_kit.wait_for(lambda: not flow_kit.hosts_of(data_dir), "the idle host ends with the flow")
    (benchmark_id,) = [path.name for path in (data_dir / "benchmarks").iterdir()]
    resumed = flow_kit.run_command([*COMMAND, "--resume", benchmark_id], served_env)
    assert resumed.code == 0, resumed.err
    assert read_plan(data_dir)["profile"]["rates_per_s"] == rates
    assert len(completed()) == 4 and before <= set(completed())

    found = flow_kit.query(data_dir, POINTS)
    assert [row[1] for row in found] == ["concurrency", "all_at_once", "constant", "constant"]
    assert [row[0] for row in found] == [
        f"served {label}" for label in ("synchronous", "throughput", *map(_label, rates))
    ]
    synchronous, at_once = found[0][2], found[1][2]
    assert synchronous < rates[0] < rates[1] == float(f"{at_once:.4g}")
    assert {row[3:] for row in found} == {("completed", 6)}, "the limit holds at every point"
    kept = flow_kit.query(
        data_dir,
        "select details_json ->> 'kept_from' from engine_events join runs using (run_id) "
        "where event = 'opened' and engine_events.attempt = 1 order by started_at limit 3",
    )
    first = flow_kit.query(data_dir, "select run_id from runs order by started_at limit 1")[0]
    assert kept == [None, first, first]
    flow_kit.wait_for(lambda: not flow_kit.hosts_of(data_dir), "no host is left")
    (report,) = data_dir.glob("benchmarks/*/report.html")
    assert str(report) in resumed.out and "one at a time" in resumed.out
    page = report.read_text(encoding="utf-8")
    assert "The knee is at" in page or "No knee: " in page, "on a busy machine requests are sent late"


@pytest.mark.usefixtures("prefect_client", "served_env")
def test_ends_without_rates_between_are_told_and_reported(spec, data_dir, capsys):
    """One request is as fast alone as all at once. The command in this process, which is quicker."""
    arguments = [str(spec), "--profile", "sweep", "--requests", "1", "--prompts.limit", "1", "--points", "500000"]
    assert run("benchmark", arguments) == 7
    assert "there are no 500000 rates between" in capsys.readouterr().err
    assert [row[1] for row in flow_kit.query(data_dir, POINTS)] == ["concurrency", "all_at_once"]
    assert len(list(data_dir.glob("benchmarks/*/report.html"))) == 1


def _label(rate: float) -> str:
    return f"{rate:g}/s"
