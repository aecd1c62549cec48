"""Ending `assayline evaluate` from outside: what had finished is stored, and no process is left."""

import os
import signal
import sys
import threading
import time
from typing import Any, TextIO

import flow_kit
import psutil
import pytest
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling
from run_kit import PATIENCE_S

from assayline.run.begin import begin_evaluation
from assayline.spec.file import parse_spec


def test_terminated_command_stores_what_had_finished(alone_env, fake_spec, data_dir, tmp_path):
    """After --fresh it names the run to resume, as the same command would start a new one. Ctrl-C is in
    test_resume_flow.py, SIGTERM with a real engine in test_deployment.py.
    """
    lines = flow_kit.write_rows(tmp_path / "rows", 20).read_text().splitlines(keepends=True)
    over = threading.Event()

    def feed(source: TextIO) -> None:
        source.writelines(lines)
        over.wait(PATIENCE_S)

    flow_kit.feed_pipe(tmp_path / "slow.jsonl", feed)
    fake_spec["prompts"]["source"]["path"] = str(tmp_path / "slow.jsonl")
    fake_spec["workers"] = 2
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    log = tmp_path / "command.log"
    with flow_kit.started(flow_kit.evaluate_command(spec, "--fresh"), alone_env, log) as process:
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 2, "every worker is at work")
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) == 20, "answers")
        connections = psutil.Process(process.pid).net_connections("tcp")
        assert [one for one in connections if one.status == psutil.CONN_LISTEN] == [], "it serves nothing"
        process.terminate()
        over.set()
        assert process.wait(PATIENCE_S) == 143
        flow_kit.assert_nothing_runs(data_dir)
    ((run_id, *ended),) = flow_kit.query(data_dir, "select run_id, state, message from runs")
    assert ended == ["cancelled", "Stopped before its end by SIGTERM."]
    assert flow_kit.query(data_dir, "select count(*) from completions") == [20]
    said = log.read_text()
    assert "Cancelled. Finished results are stored." in said and "Traceback" not in said
    assert f"hint: run `assayline evaluate --resume {run_id}` to resume it." in said


NIGHT = """
import sys
from assayline.flows.live import watch
from assayline.flows.nightly import nightly

watch.LOOK_INTERVAL_S = 1
nightly(sys.argv[1])
"""


@pytest.mark.prefect
def test_cancelled_night_ends_without_a_worker(served_env, prefect_client, data_dir, slow_spec, tmp_path):
    """Prefect's worker, which would end the process, stops looking for cancellations after an outage of the API."""
    endless = {**slow_spec, "name": "endless"}
    endless["prompts"]["source"]["path"] = str(flow_kit.write_rows(tmp_path / "endless.jsonl", 10_000))
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", endless)
    log = tmp_path / "night.log"
    with flow_kit.started([sys.executable, "-c", NIGHT, str(spec)], served_env, log) as process:
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) > 0, f"the first answers; {log}")
        running = FlowRunFilter(name={"like_": "endless"}, state={"type": {"any_": [StateType.RUNNING]}})
        parts = sorted(prefect_client.read_flow_runs(flow_run_filter=running), key=lambda one: one.created)
        assert len(parts) == 1, "the night evaluates itself"
        prefect_client.set_flow_run_state(parts[0].id, Cancelling())
        process.wait(PATIENCE_S)
    flow_kit.assert_nothing_runs(data_dir)
    assert [prefect_client.read_flow_run(one.id).state.name for one in parts] == ["Cancelled"]
    said = "Stopped before its end by a cancellation in Prefect."
    assert flow_kit.query(data_dir, "select state, message from runs") == [("cancelled", said)]


def test_interrupt_during_a_query_is_still_an_interrupt(settings, fake_spec, monkeypatch):
    """DuckDB, asked in the main thread, would make it a RuntimeError, and Ctrl-C a failed run."""
    asked = threading.Event()

    def load_slowly(connection: Any, *_: Any) -> None:
        asked.set()
        connection.execute("select sum(a.range * b.range) from range(100000) a, range(5000) b").fetchall()

    def interrupt() -> None:
        if asked.wait(PATIENCE_S):  # else it would hit another test
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

    evaluation = begin_evaluation(parse_spec(fake_spec), settings)
    evaluation.prepare()
    monkeypatch.setattr("assayline.run.evaluation.load_parts", load_slowly)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        evaluation.try_load()
