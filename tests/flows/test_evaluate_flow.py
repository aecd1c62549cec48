"""The flow in this process, with the fake engine, against a real Prefect server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import flow_kit
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State

from assayline.engines.fake import FakeEngine
from assayline.errors import Death, EngineDiedError, PromptError
from assayline.records import Completion
from assayline.spec.file import load_spec, parse_spec
from flows.evaluate import evaluate

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]


def run(spec: Any) -> State[dict[str, Any]]:
    return evaluate(spec, return_state=True)


def artifacts_of(client: Any, state: State[Any]) -> dict[str, Any]:
    """The newest of each key."""
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    found = sorted(client.read_artifacts(artifact_filter=wanted), key=lambda artifact: artifact.created)
    return {artifact.key: artifact for artifact in found}


def wait_for_log(client: Any, state: State[Any], text: str) -> None:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    flow_kit.wait_for(
        lambda: any(text in log.message for log in client.read_logs(log_filter=wanted)),
        20,
        f"{text!r} in the run's log",
    )


def test_run_answers_stores_and_shows_every_prompt(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path
) -> None:
    state = run(parse_spec(fake_spec))

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
    page = artifacts["report-trial"]
    assert page.task_run_id is None, "the artifact is the flow run's own, and so on top of its page"
    assert page.description == state.message
    assert run_id in page.data and str(data_dir) not in page.data
    assert page.data.count("](data:image/svg+xml;base64,") >= 5 and len(page.data) < 300_000
    assert page.data.count("| answered | 40 |") == 1


@pytest.mark.parametrize("form", ["path", "dict", "file"])
def test_spec_may_be_a_path_or_plain_data(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, tmp_path: Path, form: str
) -> None:
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    plain = {**fake_spec, "prompts": {**fake_spec["prompts"], "limit": 3}}
    forms = {"path": str(path), "dict": fake_spec, "file": {"file": str(path), "overrides": {"prompts.limit": 3}}}
    state = run(forms[form])
    assert state.is_completed()
    (stored,) = flow_kit.query(data_dir, "select spec_json from runs")
    wanted = load_spec(path) if form != "file" else parse_spec(plain)
    assert json.loads(stored) == wanted.model_dump(mode="json")
    assert prefect_client.read_flow_run(state.state_details.flow_run_id).name.startswith("trial · modest")


def test_duplicates_and_bad_rows_are_counted_and_said(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path
) -> None:
    same = {"question": "What is 1 + 1?", "answer": "2"}
    fake_spec["prompts"]["source"] = {"kind": "inline", "rows": [same, same, {"answer": "3"}, same]}
    state = run(fake_spec)
    assert state.is_completed()
    assert flow_kit.query(data_dir, "select prompt_rows, duplicate_prompts, expected_requests from runs") == [(4, 2, 4)]
    assert flow_kit.query(data_dir, "select error_kind, count(*) from completions group by 1 order by 2") == [
        ("template_error", 1),
        (None, 3),
    ]
    wait_for_log(prefect_client, state, "2 of 4 prompts repeat an earlier one")
    wait_for_log(prefect_client, state, "1 requests cannot be generated")


def test_source_that_breaks_in_the_middle_fails_the_run_and_keeps_the_answers(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAYLINE_LOAD_INTERVAL_S", "600")  # so that it is the run's end that loads
    lines = flow_kit.write_rows(tmp_path / "rows", 500).read_text().splitlines(keepends=True)

    def feed(source: TextIO) -> None:
        source.writelines(lines[:499])
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 490, 60, "full shards are answered")
        source.write("{broken\n")
        source.writelines(lines[499:])

    pipe = tmp_path / "broken.jsonl"
    flow_kit.feed_pipe(pipe, feed)
    fake_spec["prompts"]["source"]["path"] = str(pipe)
    fake_spec["prompts"]["on_bad_row"] = "stop"
    state = run(fake_spec)

    assert state.is_failed()
    with pytest.raises(PromptError, match="line 500: not JSON"):
        state.result()
    (row,) = flow_kit.query(data_dir, "select state, finished_at is not null from runs")
    assert row == ("failed", True)
    assert flow_kit.query(data_dir, "select count(*) from completions")[0] == flow_kit.count_in_parts(data_dir) >= 490
    wait_for_log(prefect_client, state, "line 500: not JSON")


def test_page_that_cannot_be_written_does_not_fail_the_run(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("the API is away")

    monkeypatch.setattr("tasks.artifacts.create_markdown_artifact", refuse)
    monkeypatch.setattr("flows.live.watch.create_progress_artifact", refuse)
    state = run(fake_spec)
    assert state.is_completed()
    assert state.result()["answered_requests"] == 40
    assert flow_kit.query(data_dir, "select state from runs") == ["completed"]
    assert artifacts_of(prefect_client, state) == {}
    told = "The run's page does not show how far it came: ConnectionError: the API is away"
    wait_for_log(prefect_client, state, told)


@pytest.mark.usefixtures("prefect_client")
def test_database_held_by_another_process_does_not_stop_the_run(
    fake_spec: dict[str, Any], data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = flow_kit.write_rows(tmp_path / "rows", 200).read_text().splitlines(keepends=True)

    def feed(source: TextIO) -> None:
        source.writelines(lines[:100])
        flow_kit.wait_for(lambda: hold_and_go_on(source), 60, "the first hundred are loaded")

    def hold_and_go_on(source: TextIO) -> bool:
        with flow_kit.database_held(data_dir) as (pid, loaded_requests):
            if loaded_requests < 100:
                return False
            flow_kit.wait_for(lambda: f"is held by process {pid}" in caplog.text, 60, "the run says who is in the way")
            source.writelines(lines[100:])
            flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) == 200, 60, "the rest is answered")
            return True

    pipe = tmp_path / "slow.jsonl"
    fake_spec["prompts"]["source"]["path"] = str(pipe)
    feeder = flow_kit.feed_pipe(pipe, feed)
    state = run(fake_spec)
    feeder.join(timeout=10)

    assert state.is_completed()
    assert flow_kit.query(data_dir, "select count(distinct request_id), count(*) from completions") == [(200, 200)]


class Narrow(FakeEngine):
    """Runs out of memory with more than four requests in flight."""

    def _step(self, live: list[Any]) -> Iterator[Completion]:
        if len(live) > 4:
            raise EngineDiedError("torch cannot have 2 GiB", Death("run", exception="OutOfMemoryError"))
        return super()._step(live)


def test_each_reduction_is_on_the_runs_page(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_narrow(order: Any, sizes: Any, *_: Any, **__: Any) -> FakeEngine:
        return Narrow(order.clock, generation=order.engine_generation, window=sizes.window_requests or 32)

    monkeypatch.setattr("assayline.evaluation.worker.open_engine", open_narrow)
    fake_spec["prompts"]["limit"] = 30
    state = run(fake_spec)
    assert state.is_completed()
    wait_for_log(prefect_client, state, "Engine 0 failed: torch cannot have 2 GiB")
    wait_for_log(prefect_client, state, "Engine 0 reduced: The next engine gets window_requests")
    table = json.loads(artifacts_of(prefect_client, state)["engines-worker-0"].data)
    assert [row["event"] for row in table][:4] == ["opened", "warmed_up", "failed", "reduced"]
    assert table[-1]["event"] == "closed" and max(int(row["engine"]) for row in table) >= 1
    metrics = {row["metric"]: row["value"] for row in state.result()["metrics"]}
    assert any("reduction" in name and value >= 1 for name, value in metrics.items())
    history = "select reductions, ending from engine_history order by engine_generation"
    assert flow_kit.query(data_dir, history)[0] == (1, "failed")
