"""Ending `python -m flows.evaluate` from outside: what had finished is stored, and no process is left."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import flow_kit
import pytest

from assayline.evaluation import begin_evaluation
from assayline.settings import Settings
from assayline.spec_file import parse_spec


@pytest.fixture
def generating(served_env: dict[str, str], tiny_model: Path, data_dir: Path, tmp_path: Path) -> Iterator[Any]:
    """The command in the middle of generating with real vLLM."""
    spec = flow_kit.write_spec(tmp_path / "endless.yaml", flow_kit.endless_spec(tiny_model))
    log = tmp_path / "command.log"
    with flow_kit.started(flow_kit.evaluate_command(spec), served_env, log) as process:

        def has_answers() -> bool:
            assert process.poll() is None, log.read_text()
            return flow_kit.count_in_parts(data_dir) > 0

        flow_kit.wait_for(has_answers, 150, "the first answers")
        assert len(flow_kit.hosts_of(data_dir)) == 1
        yield process


@pytest.mark.prefect
@pytest.mark.vllm
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ended_while_generating_keeps_what_had_finished(
    generating: subprocess.Popen[bytes], data_dir: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    if number == signal.SIGINT:
        os.killpg(generating.pid, number)  # as a terminal does on Ctrl-C
    else:
        generating.send_signal(number)
    assert generating.wait(timeout=25) == code
    flow_kit.assert_stopped_and_stored(data_dir, timeout_s=1)
    assert flow_kit.query(data_dir, "select state, finished_at is not null from runs") == [("cancelled", True)]
    assert flow_kit.processes_of(data_dir) == []
    output = (tmp_path / "command.log").read_text()
    assert "Interrupted; what had finished is stored." in output


@pytest.mark.prefect
@pytest.mark.vllm
def test_killed_while_generating_leaves_no_engine(generating: subprocess.Popen[bytes], data_dir: Path) -> None:
    answered = flow_kit.count_in_parts(data_dir)
    generating.kill()
    generating.wait(timeout=5)
    flow_kit.wait_for(lambda: not flow_kit.hosts_of(data_dir), 10, "the engine host is gone")
    assert flow_kit.count_in_parts(data_dir) >= answered > 0


@pytest.mark.prefect
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_ended_command_takes_its_own_prefect_server_along(
    command_env: dict[str, str],
    fake_spec: dict[str, Any],
    data_dir: Path,
    tmp_path: Path,
    number: signal.Signals,
    workers: int,
) -> None:
    """Without PREFECT_API_URL the command starts a server, one for all its workers, which must not outlive it."""
    lines = flow_kit.write_rows(tmp_path / "rows", 20).read_text().splitlines(keepends=True)
    over = threading.Event()

    def feed(source: TextIO) -> None:
        source.writelines(lines)
        over.wait(timeout=120)

    flow_kit.feed_pipe(tmp_path / "slow.jsonl", feed)
    fake_spec["prompts"]["source"]["path"] = str(tmp_path / "slow.jsonl")
    fake_spec["workers"] = workers
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    log = tmp_path / "command.log"
    with flow_kit.started(flow_kit.evaluate_command(spec), command_env, log) as process:
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) == 20, 120, "answers")
        assert sum("uvicorn" in started.cmdline() for started in flow_kit.processes_of(data_dir)) == 1
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        over.set()
        process.wait(timeout=25)
        assert flow_kit.processes_of(data_dir) == []
    assert flow_kit.query(data_dir, "select state from runs") == ["cancelled"]
    assert flow_kit.query(data_dir, "select count(*) from completions") == [20]
    assert "Traceback" not in log.read_text()


def test_interrupt_during_a_query_is_still_an_interrupt(
    settings: Settings, fake_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB, asked in the main thread, would make it a RuntimeError, and Ctrl-C a failed run."""
    asked = threading.Event()

    def load_slowly(connection: Any, *_: Any) -> None:
        asked.set()
        connection.execute("select sum(a.range * b.range) from range(100000) a, range(5000) b").fetchall()

    def interrupt() -> None:
        asked.wait(timeout=20)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    evaluation = begin_evaluation(parse_spec(fake_spec), settings)
    evaluation.prepare()
    monkeypatch.setattr("assayline.run.load_parts", load_slowly)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        evaluation.try_load()
