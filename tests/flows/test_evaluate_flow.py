"""The flow in this process, with the fake engine, against a real Prefect server."""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import httpx
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State
from run_kit import PATIENCE_S, complete

from assayline.engines.devices.claims import claim_device, list_devices
from assayline.engines.fake import FakeEngine
from assayline.errors import Death, EngineDiedError, EngineInterruptedError, SpecError
from assayline.flows.evaluate import evaluate
from assayline.records import Completion
from assayline.settings import load_settings
from assayline.spec.file import load_spec, parse_spec
from assayline.store.locks import lock_file

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]


def run(spec: Any) -> State[dict[str, Any]]:
    return evaluate(spec, return_state=True)


def artifacts_of(client: Any, state: State[Any]) -> dict[str, Any]:
    """All of a flow run, by key."""
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    found = sorted(client.read_artifacts(artifact_filter=wanted), key=lambda artifact: artifact.created)
    by_key = {artifact.key: artifact for artifact in found}
    assert len(found) == len(by_key), "each artifact is updated, none is made again"
    return by_key


def wait_for_log(client: Any, state: State[Any], text: str) -> None:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    flow_kit.wait_for(
        lambda: any(text in log.message for log in client.read_logs(log_filter=wanted)),
        f"{text!r} in the run's log",
    )


@pytest.mark.usefixtures("prefect_client")
def test_run_logs_another_command_that_uses_the_database_as_information(fake_spec, data_dir, monkeypatch):
    settings = load_settings()
    lock = lock_file(settings.database_path.with_name("assayline.duckdb.lock"), 0)
    assert lock is not None
    monkeypatch.setenv("ASSAYLINE_DATABASE_WAIT_S", "0.1")
    records: list[logging.LogRecord] = []
    step = FakeEngine._step

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "assayline.duckdb is in use" in record.getMessage():
                records.append(record)
                if "next try" in record.getMessage():
                    lock.release()

    def step_once_seen(self: FakeEngine, live: list[Any]) -> Any:
        flow_kit.wait_for(lambda: len(records) == 2, "both lines about the holder")
        return step(self, live)

    monkeypatch.setattr(FakeEngine, "_step", step_once_seen)
    monkeypatch.setattr(logging.getLogger("prefect.flow_runs"), "handlers", [Reader()])
    fake_spec["engine"]["max_concurrency"] = 1
    assert run(fake_spec).is_completed()
    _, tried = records
    assert tried.levelname == "INFO" and f"process {os.getpid()} on " in tried.getMessage()
    assert tried.getMessage().endswith("another assayline command. Results are in part files; next try in 0.2 s.")


def test_run_answers_stores_and_shows_every_prompt(prefect_client, fake_spec, data_dir, tmp_path):
    """The spec is the path of a file; other tests give it as plain data."""
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    state = run(str(path))

    assert state.is_completed()
    result = state.result()
    metrics = {row["metric"]: row["value"] for row in result["metrics"]}
    assert result["answered_requests"] == metrics["answered"] == 40
    assert metrics["accuracy (exact_match)"] == 1.0
    assert result["database"] == str(data_dir / "assayline.duckdb")
    run_id = result["run_id"]
    (row,) = flow_kit.query(data_dir, "select run_id, state, prompt_rows, expected_requests, finished_at from runs")
    assert row[:4] == (run_id, "completed", 40, 40)
    assert row[4] is not None
    (stored,) = flow_kit.query(data_dir, "select spec_json from runs")
    assert json.loads(stored) == load_spec(path).model_dump(mode="json")
    assert flow_kit.query(data_dir, "select is_sound from request_integrity where run_id = ?", run_id) == [True]
    assert flow_kit.query(data_dir, "select event from engine_events order by at_s") == [
        "opened",
        "warmed_up",
        "closed",
    ]

    flow_run = prefect_client.read_flow_run(state.state_details.flow_run_id)
    assert re.fullmatch(r"trial · modest · [0-9a-f]{4}", flow_run.name)
    artifacts = artifacts_of(prefect_client, state)
    assert set(artifacts) == {"progress", "report-trial"}
    assert artifacts["progress"].data == 100
    of_worker = prefect_client.read_task_run(artifacts["progress"].task_run_id)
    assert (of_worker.name, of_worker.state.message) == ("generate-worker-0", "40 answers")
    page = artifacts["report-trial"]
    assert page.task_run_id is None, "the artifact is the flow run's own, and so on top of its page"
    assert page.description == state.message
    assert run_id in page.data and str(data_dir) not in page.data
    assert page.data.count("](data:image/svg+xml;base64,") >= 5 and len(page.data) < 300_000
    assert page.data.count("| answered | 40\u00a0requests |") == 1
    assert f"Run completed: {page.description}." in page.data.replace("\u00a0", " "), "one text"
    report = data_dir / "runs" / run_id / "report.html"
    assert result["report"] == str(report) and "<h1>trial</h1>" in report.read_text(encoding="utf-8")
    wait_for_log(prefect_client, state, f"Report: {report}")


@pytest.mark.usefixtures("prefect_client", "data_dir")
def test_a_run_that_fails_leaves_no_thread_behind(fake_spec, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise SpecError("engine.args: refused")

    monkeypatch.setattr("assayline.run.worker.open_engine", refuse)
    before = set(threading.enumerate())
    assert run(fake_spec).is_failed()
    flow_kit.wait_for(
        lambda: not [one for one in set(threading.enumerate()) - before if one.name == "reports"], "no thread"
    )


def test_duplicates_bad_rows_and_a_missing_baseline_are_counted_and_said(prefect_client, fake_spec, data_dir, tmp_path):
    """The spec is a file with an overridden field."""
    same = {"question": "What is 1 + 1?", "answer": "2"}
    fake_spec["prompts"]["source"] = {"kind": "inline", "rows": [same, same, {"answer": "3"}, same]}
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    state = run({"file": str(path), "overrides": {"gate.baseline": "no-such-baseline"}})
    assert state.is_completed()
    assert flow_kit.query(data_dir, "select prompt_rows, duplicate_prompts, expected_requests from runs") == [(4, 2, 4)]
    assert flow_kit.query(data_dir, "select error_kind, count(*) from completions group by 1 order by 2") == [
        ("template_error", 1),
        (None, 3),
    ]
    wait_for_log(prefect_client, state, "2 of 4 prompts are duplicates")
    wait_for_log(prefect_client, state, "1 requests are error rows")
    wait_for_log(prefect_client, state, "Writing the report without its baseline")
    assert "Comparison with the baseline" not in artifacts_of(prefect_client, state)["report-trial"].data


def test_progress_is_sent_every_15_seconds_at_most(prefect_client, prefect_api, slow_spec, data_dir):
    slow_spec["prompts"]["limit"] = 16  # two seconds
    begun_s = time.monotonic()
    state = run(slow_spec)
    most = 2 + (time.monotonic() - begun_s) / 15
    artifact = artifacts_of(prefect_client, state)["progress"]
    wanted = {"filter": {"resource": {"id": [f"prefect.artifact.{artifact.id}"]}}, "limit": 50}

    def list_events() -> list[Any]:
        found: list[Any] = httpx.post(f"{prefect_api}/events/filter", json=wanted).json()["events"]
        return found if found and found[0]["payload"].get("data") == 100 else []

    assert 2 <= len(flow_kit.wait_for(list_events, "the last event of the progress arrives")) <= most


def test_page_that_cannot_be_written_does_not_fail_the_run(prefect_client, fake_spec, data_dir, monkeypatch):
    def refuse(**_: Any) -> None:
        raise ConnectionError("the API is away")

    monkeypatch.setattr("assayline.flows.live.reporting.create_markdown_artifact", refuse)
    monkeypatch.setattr("assayline.flows.live.watch.create_progress_artifact", refuse)
    state = run(fake_spec)
    assert state.is_completed()
    assert state.result()["answered_requests"] == 40
    assert flow_kit.query(data_dir, "select state from runs") == ["completed"]
    assert artifacts_of(prefect_client, state) == {}
    told = "Failed to send progress to the run's page: ConnectionError: the API is away"
    wait_for_log(prefect_client, state, told)


def test_a_report_that_cannot_be_written_is_a_warning(prefect_client, fake_spec, data_dir, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("assayline.report.make.replace_file", refuse)
    state = run(fake_spec)
    assert state.is_completed()
    assert state.result()["report"] is None
    shown = artifacts_of(prefect_client, state)
    assert set(shown) == {"progress", "report-trial"}
    assert shown["report-trial"].data.startswith("| metric | value |"), "the page has the metrics at least"
    wait_for_log(prefect_client, state, "Failed to write the report")
    assert flow_kit.query(data_dir, "select state from runs") == ["completed"]


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "late"])
def test_worker_without_a_request_is_noted_and_keeps_the_speed_from_counting(
    prefect_client, fake_spec, data_dir, monkeypatch, fails
):
    is_second_here = threading.Event()

    def open_one(order: Any, window: Any, setup: Any, hooks: Any, **__: Any) -> FakeEngine:
        if order.worker == "worker-0":
            assert is_second_here.wait(PATIENCE_S)
            return FakeEngine(order)
        is_second_here.set()
        if fails:
            raise EngineDiedError("no driver", Death("start"))
        flow_kit.wait_for(hooks.should_stop, "the run's end stops an engine that starts")
        raise EngineInterruptedError("stopped")

    monkeypatch.setattr("assayline.run.worker.open_engine", open_one)
    state = run({**fake_spec, "workers": 2})
    assert state.is_completed() and state.result()["answered_requests"] == 40
    note = "The run's speed does not count among the repeats of its configuration: worker-1 answered no request."
    assert state.result()["notes"] == [note] and note in artifacts_of(prefect_client, state)["report-trial"].data
    assert flow_kit.query(data_dir, "select obstacle from main.run") == ["worker-1 answered no request"]
    assert flow_kit.query(data_dir, "select count(*) from engine where ending = 'vanished'") == [0]


def test_command_whose_device_is_taken_prints_the_reason_in_the_log_and_at_its_end(
    served_env, fake_spec, data_dir, tmp_path
):
    fake_spec["engine"] = {"device": "cpu"}  # a real one, which needs a device
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    locks = Path(served_env["ASSAYLINE_LOCK_DIR"])
    with claim_device(list_devices("cpu", 1), locks, 0, "run 7 (night)"):
        busy = flow_kit.run_command(flow_kit.evaluate_command(spec), served_env)
    assert busy.code == 5, busy.out + busy.err
    assert (busy.out + busy.err).count("by run 7 (night)") == 2, busy.out + busy.err
    assert flow_kit.query(data_dir, "select count(*) from engine_events") == [0], "no engine has failed"


class Narrow(FakeEngine):
    """Runs out of memory with more than four requests in flight."""

    def _step(self, live: list[Any]) -> Iterator[Completion]:
        if len(live) > 4:
            raise EngineDiedError("torch cannot have 2 GiB", Death("run", exception="OutOfMemoryError"))
        return super()._step(live)


def test_each_reduction_and_the_baseline_of_the_spec_are_on_the_runs_page(
    prefect_client, fake_spec, data_dir, monkeypatch
):
    def open_narrow(order: Any, window: Any, *_: Any, **__: Any) -> FakeEngine:
        return Narrow(order, window=window or 32)

    baseline = complete(parse_spec(fake_spec), load_settings()).run_id
    monkeypatch.setattr("assayline.run.worker.open_engine", open_narrow)
    fake_spec["prompts"]["limit"] = 30
    state = run({**fake_spec, "gate": {"baseline": baseline}})
    assert state.is_completed()
    wait_for_log(prefect_client, state, "Engine 0 failed: torch cannot have 2 GiB")
    wait_for_log(prefect_client, state, "Engine 0 reduced: The next engine gets ")
    artifacts = artifacts_of(prefect_client, state)
    assert "Comparison with the baseline" in artifacts["report-trial"].data
    metrics = {row["metric"]: row["value"] for row in state.result()["metrics"]}
    said = r"100% correct, \S+ tokens/s, \d engine failures?, \d memory reductions?\. Out of memory, so reduced: "
    said += r".*max concurrency 32 → \d+.* Recovery took \d+ s, which tokens/s leave out\. The run's speed does not "
    said += r"count among the repeats .*: an engine failed\."
    assert re.fullmatch(said, state.message.replace("\u00a0", " ")), state.message
    assert any("reduction" in name and value >= 1 for name, value in metrics.items())
    history = "select reductions, ending from engine where run_id = ? order by engine_generation"
    assert flow_kit.query(data_dir, history, state.result()["run_id"])[0] == (1, "failed")
