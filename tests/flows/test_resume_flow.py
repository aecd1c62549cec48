"""Killed, interrupted, failed: the same command goes on, and every request is answered exactly once."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import flow_kit
import pytest

from flows.command import parse_words, run_command
from flows.evaluate import evaluate

ROWS = flow_kit.SLOW_ROWS


def answer_some(
    command: list[str], env: dict[str, str], data_dir: Path, log: Path, end: Callable[[Any], None], at_least: int = 8
) -> int:
    """Starts a command and ends it when it has some answers; gives the exit code."""
    with flow_kit.started(command, env, log) as process:

        def has_answers() -> bool:
            assert process.poll() is None, log.read_text()
            return flow_kit.count_in_parts(data_dir) >= at_least

        flow_kit.wait_for(has_answers, 120, "the first answers")
        end(process)
        return process.wait(timeout=25)


def check_sound(data_dir: Path, attempts: int) -> str:
    """Every request exactly once, in one run, whose id this gives."""
    ((run_id, state, attempt, expected),) = flow_kit.query(
        data_dir, "select run_id, state, attempt, expected_requests from runs"
    )
    assert (state, attempt, expected) == ("completed", attempts, ROWS)
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    assert flow_kit.query(data_dir, "select count(*), count(distinct request_id) from completions") == [(ROWS, ROWS)]
    assert flow_kit.count_in_parts(data_dir) == ROWS
    return str(run_id)


@pytest.mark.prefect
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_command_goes_on_and_answers_every_request_once(
    served_env: dict[str, str], slow_spec: dict[str, Any], data_dir: Path, tmp_path: Path, workers: int
) -> None:
    """SIGKILL of the flow's process, whose workers are threads of it, or processes of their own."""
    slow_spec["workers"] = workers
    command = flow_kit.evaluate_command(flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec))
    log = tmp_path / "command.log"
    answer_some(command, served_env, data_dir, log, lambda process: process.kill())
    assert flow_kit.count_in_parts(data_dir) < ROWS
    run = flow_kit.run_command(command, served_env)
    assert run.code == 0, run.out + run.err
    run_id = check_sound(data_dir, attempts=2)
    assert f"Going on with run {run_id}, attempt 2" in run.out + run.err
    generations = flow_kit.query(data_dir, "select worker, attempt, engine_generation from engine_events order by all")
    assert len({(worker, generation) for worker, _, generation in generations}) == len(
        {(worker, attempt, generation) for worker, attempt, generation in generations}
    ), "no engine of the second attempt has the number of one of the first"


@pytest.mark.prefect
def test_killed_again_and_again_it_comes_to_its_end(
    served_env: dict[str, str], slow_spec: dict[str, Any], data_dir: Path, tmp_path: Path
) -> None:
    command = flow_kit.evaluate_command(flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec))
    log = tmp_path / "command.log"
    for _ in range(3):
        answered = flow_kit.count_in_parts(data_dir)
        answer_some(command, served_env, data_dir, log, lambda process: process.kill(), answered + 5)
    assert flow_kit.run_command(command, served_env).code == 0
    check_sound(data_dir, attempts=4)


@pytest.mark.prefect
def test_interrupted_command_says_how_to_go_on(
    served_env: dict[str, str], slow_spec: dict[str, Any], data_dir: Path, tmp_path: Path
) -> None:
    """The hint after Ctrl-C, what --dry-run says of it, a changed spec, and --resume without the spec."""
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec)
    command, log = flow_kit.evaluate_command(spec), tmp_path / "command.log"
    code = answer_some(command, served_env, data_dir, log, lambda process: os.killpg(process.pid, signal.SIGINT))
    assert code == 130
    answered = flow_kit.count_in_parts(data_dir)
    (run_id,) = flow_kit.query(data_dir, "select run_id from runs where state = 'cancelled'")
    hint = f"Run {run_id} is unfinished: the same command goes on with it, {answered} of {ROWS} requests answered."
    assert hint in log.read_text()

    dry = flow_kit.run_command([*command, "--dry-run"], served_env)
    assert f"This would go on with run {run_id}: {answered} of {ROWS} requests answered." in dry.out
    changed = flow_kit.run_command([*command, "--sampling.temperature", "0.7", "--dry-run"], served_env)
    assert f"Run {run_id} of this name is unfinished" in changed.out
    assert "sampling.temperature: unset → 0.7" in changed.out and "This would be a new run." in changed.out
    fresh = flow_kit.run_command([*command, "--fresh", "--dry-run"], served_env)
    assert "This would be a new run." in fresh.out

    run = flow_kit.run_command(flow_kit.evaluate_command("--resume", run_id), served_env)
    assert run.code == 0, run.out + run.err
    assert check_sound(data_dir, attempts=2) == run_id
    again = flow_kit.run_command(flow_kit.evaluate_command("--resume", run_id), served_env)
    assert again.code == 2 and f"error: Run {run_id} is completed" in again.err and "Traceback" not in again.err


@pytest.mark.prefect
def test_terminated_fresh_command_names_the_run_to_resume(
    served_env: dict[str, str], slow_spec: dict[str, Any], data_dir: Path, tmp_path: Path
) -> None:
    """The same command would start a new run."""
    command = flow_kit.evaluate_command(flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec), "--fresh")
    log = tmp_path / "command.log"
    assert answer_some(command, served_env, data_dir, log, lambda process: process.terminate()) == 143
    (run_id,) = flow_kit.query(data_dir, "select run_id from runs")
    assert f"Run {run_id} is unfinished: python -m flows.evaluate --resume {run_id} goes on with it" in log.read_text()


@pytest.mark.prefect
def test_two_commands_at_once_are_two_runs(
    served_env: dict[str, str], slow_spec: dict[str, Any], data_dir: Path, tmp_path: Path
) -> None:
    command = flow_kit.evaluate_command(flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec))
    second: list[flow_kit.Finished] = []

    def run_another(process: Any) -> None:
        second.append(flow_kit.run_command(command, served_env))

    def has_both() -> bool:
        return flow_kit.query(data_dir, "select state from runs") == ["completed", "completed"]

    log = tmp_path / "command.log"
    assert answer_some(command, served_env, data_dir, log, run_another) == 0, log.read_text()
    assert second[0].code == 0, second[0].err
    flow_kit.wait_for(has_both, 10, "both runs are completed")
    assert re.search(r"of this spec is worked on by process \d+", second[0].out + second[0].err)
    assert flow_kit.query(data_dir, "select count(*), count(distinct (run_id, request_id)) from completions") == [
        (2 * ROWS, 2 * ROWS)
    ]


@pytest.mark.prefect
def test_failed_run_says_how_to_go_on_and_does(
    served_env: dict[str, str], fake_spec: dict[str, Any], data_dir: Path, tmp_path: Path
) -> None:
    """A pipe that breaks in its middle, and gives the same prompts when it is read the next time."""
    lines = flow_kit.write_rows(tmp_path / "rows", ROWS).read_text().splitlines(keepends=True)
    pipe = tmp_path / "sums.pipe.jsonl"
    fake_spec["prompts"]["source"]["path"] = str(pipe)
    command = flow_kit.evaluate_command(flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec))

    def feed_broken(source: TextIO) -> None:
        source.writelines(lines[:45])
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 40, 60, "full shards are answered")
        source.write("{broken\n")

    flow_kit.feed_pipe(pipe, feed_broken)
    failed = flow_kit.run_command(command, served_env)
    assert failed.code == 3 and "line 46: not JSON" in failed.err
    assert "the same command goes on with it, 40 requests answered, and its prompts not all read." in failed.err
    pipe.unlink()
    flow_kit.feed_pipe(pipe, lambda source: source.writelines(lines))
    run = flow_kit.run_command(command, served_env)
    assert run.code == 0, run.out + run.err
    check_sound(data_dir, attempts=2)


@pytest.mark.prefect
def test_flow_parameter_starts_anew_or_goes_on(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assayline.evaluation import Evaluation

    def fail(self: Evaluation, counts: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "finish", fail)
        assert evaluate(fake_spec, return_state=True).is_failed()
    (first,) = flow_kit.query(data_dir, "select run_id from runs where state = 'failed'")
    new = evaluate(fake_spec, resume="never")
    assert new["run_id"] != first
    going_on = evaluate(fake_spec, resume=first)
    assert going_on["run_id"] == first
    assert flow_kit.query(data_dir, "select state, attempt from runs order by run_id") == [
        ("completed", 2),
        ("completed", 1),
    ]
    assert flow_kit.query(data_dir, "select worker from engine_events where attempt = 2") == [], (
        "nothing was left to ask"
    )


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> flow_kit.Finished:
    """The same command in this process, which is quicker."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = run_command(evaluate, list(arguments))
    finally:
        signal.signal(signal.SIGTERM, before)
    return flow_kit.Finished(code, *capsys.readouterr())


def test_unknown_run_and_fields_beside_it_are_one_message(
    capsys: pytest.CaptureFixture[str], data_dir: Path, fake_spec: dict[str, Any], tmp_path: Path
) -> None:
    (data_dir / "runs" / "20261121-120000-trial-ab12").mkdir(parents=True)
    unknown = answer(capsys, "--resume", "20261121-120000-trial-ab13")
    assert unknown.code == 2
    assert "no run '20261121-120000-trial-ab13'" in unknown.err and "nearest: 20261121-120000-trial-ab12" in unknown.err
    no_manifest = answer(capsys, "--resume", "20261121-120000-trial-ab12")
    assert no_manifest.code == 6 and "spec.json cannot be read" in no_manifest.err
    field = answer(capsys, "--resume", "20261121-120000-trial-ab12", "--prompts.limit", "3")
    assert field.code == 2 and "--prompts.limit was given with --resume" in field.err
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    both = answer(capsys, "--dry-run", "--resume", "20261121-120000-trial-ab12", str(spec))
    assert both.code == 6 and "has no run.json" in both.err


@pytest.mark.parametrize("arguments", [[], ["--dry-run"], ["x.yaml", "--fresh", "--resume", "y"]])
def test_command_without_a_spec_or_with_both_ways_shows_its_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        answer(capsys, *arguments)
    assert caught.value.code == 2
    assert "usage: python -m flows.evaluate [SPEC] [--resume RUN_ID | --fresh]" in capsys.readouterr().err


def test_spec_may_stand_anywhere() -> None:
    assert parse_words(["a.yaml", "--x", "1", "--y=2"]) == ("a.yaml", {"x": "1", "y": "2"})
    assert parse_words(["--x", "1", "a.yaml", "--y", "--z"]) == ("a.yaml", {"x": "1", "y": "--z"})
    assert parse_words([]) == (None, {})


@pytest.mark.parametrize("folder", ["file/data", "/proc/data"])
def test_data_folder_that_cannot_be_made_is_one_message(
    command_env: dict[str, str], fake_spec: dict[str, Any], tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("")
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    started = time.monotonic()
    run = flow_kit.run_command(
        flow_kit.evaluate_command(spec), {**command_env, "ASSAYLINE_DATA_DIR": str(tmp_path / folder)}
    )
    assert run.code == 6, run.err
    assert "ASSAYLINE_DATA_DIR" in run.err and "Traceback" not in run.err + run.out
    assert time.monotonic() - started < 60
