"""Killed, interrupted, failed: the same command resumes, and every request is answered exactly once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import flow_kit
import pytest
from run_kit import PATIENCE_S

from assayline.errors import SpecError
from assayline.flows.cli import run
from assayline.flows.cli.words import parse_words
from assayline.flows.evaluate import evaluate

ROWS = 32


@pytest.fixture
def slow_spec(slow_spec: dict[str, Any]) -> dict[str, Any]:
    """No more requests than it takes to be in the middle."""
    slow_spec["prompts"]["limit"] = ROWS
    return slow_spec


def answer_some(
    command: list[str], env: dict[str, str], data_dir: Path, log: Path, end: Callable[[Any], None], at_least: int = 8
) -> int:
    """Start a command and end it when it has some answers; return the exit code."""
    with flow_kit.started(command, env, log) as process:

        def has_answers() -> bool:
            assert process.poll() is None, log.read_text()
            return flow_kit.count_in_parts(data_dir) >= at_least

        flow_kit.wait_for(has_answers, "the first answers")
        end(process)
        return process.wait(PATIENCE_S)


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


def check_generations(data_dir: Path) -> None:
    generations = flow_kit.query(data_dir, "select worker, attempt, engine_generation from engine_events order by all")
    assert len({(worker, generation) for worker, _, generation in generations}) == len(
        {(worker, attempt, generation) for worker, attempt, generation in generations}
    ), "no engine of a later attempt has the number of an earlier one"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> flow_kit.Finished:
    """The same command in this process, which is quicker."""
    code = run("evaluate", list(arguments))
    return flow_kit.Finished(code, *capsys.readouterr())


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_client")
def test_command_that_is_killed_and_interrupted_leaves_no_process_and_goes_on(
    alone_env, served_env, slow_spec, data_dir, tmp_path, capsys
):
    """SIGKILL gives it no chance to end anything. Ctrl-C, in a flow run, is followed by a hint.

    Then the output of --dry-run, a changed spec, and --resume without the spec.
    """
    slow_spec["workers"] = 2
    spec = str(flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec))
    command, log = flow_kit.evaluate_command(spec), tmp_path / "command.log"

    def kill(process: Any) -> None:
        process.kill()
        process.wait(PATIENCE_S)
        flow_kit.assert_nothing_runs(data_dir)

    answer_some(command, alone_env, data_dir, log, kill, at_least=8)
    killed = flow_kit.count_in_parts(data_dir)
    code = answer_some(
        command, served_env, data_dir, log, lambda process: os.killpg(process.pid, signal.SIGINT), at_least=killed + 4
    )
    assert code == 130
    answered = flow_kit.count_in_parts(data_dir)
    (run_id,) = flow_kit.query(data_dir, "select run_id from runs where state = 'cancelled'")
    said = log.read_text()
    assert f"Resuming run {run_id}, attempt 2" in said
    assert f"Run {run_id} is unfinished, {answered} of {ROWS} requests answered. hint: rerun the command" in said

    dry = answer(capsys, spec, "--dry-run")
    assert f"This would resume run {run_id}: {answered} of {ROWS} requests answered." in dry.out
    changed = answer(capsys, spec, "--sampling.temperature", "0.7", "--dry-run")
    assert f"Run {run_id} of this name is unfinished" in changed.out
    assert "sampling.temperature: unset → 0.7" in changed.out and "This would start a new run." in changed.out
    fresh = answer(capsys, spec, "--fresh", "--dry-run")
    assert "This would start a new run." in fresh.out

    resumed = answer(capsys, "--resume", run_id)
    assert resumed.code == 0, resumed.out + resumed.err
    assert check_sound(data_dir, attempts=3) == run_id
    check_generations(data_dir)
    again = answer(capsys, "--resume", run_id)
    assert again.code == 2 and f"error: Run {run_id} is completed" in again.err and "Traceback" not in again.err


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_client")
def test_failed_run_prints_a_resume_hint_that_works(served_env, fake_spec, data_dir, tmp_path, capsys):
    """A pipe that breaks in its middle, and gives the same prompts when it is read the next time."""
    lines = flow_kit.write_rows(tmp_path / "rows", ROWS).read_text().splitlines(keepends=True)
    pipe = tmp_path / "sums.pipe.jsonl"
    fake_spec["prompts"]["source"]["path"] = str(pipe)
    fake_spec["max_error_share"] = 0
    spec = str(flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec))

    def feed_broken(source: TextIO) -> None:
        source.writelines(lines[:25])
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 20, "full shards are answered")
        source.write("{broken\n")

    flow_kit.feed_pipe(pipe, feed_broken)
    failed = answer(capsys, spec)
    assert failed.code == 3 and "line 26: not JSON" in failed.err
    assert "20 requests answered, not all prompts read. hint: rerun the command to resume it." in failed.err
    (report,) = data_dir.glob("runs/*/report.md")
    assert "Run failed" in report.read_text(encoding="utf-8")
    pipe.unlink()
    flow_kit.feed_pipe(pipe, lambda source: source.writelines(lines))
    resumed = answer(capsys, spec)
    assert resumed.code == 0, resumed.out + resumed.err
    check_sound(data_dir, attempts=2)


@pytest.mark.prefect
@pytest.mark.usefixtures("short_reports")
def test_flow_parameter_resumes_the_run_that_it_names(prefect_client, fake_spec, data_dir, tmp_path, monkeypatch):
    from assayline.run.begin import Evaluation

    def fail(self: Evaluation, counts: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "finish", fail)
        assert evaluate(fake_spec, return_state=True).is_failed()
    (first,) = flow_kit.query(data_dir, "select run_id from runs where state = 'failed'")
    going_on = evaluate(fake_spec, resume=first)
    assert going_on["run_id"] == first
    assert flow_kit.query(data_dir, "select state, attempt from runs") == [("completed", 1)]
    opened = "select count(*) from engine_events where event = 'opened'"
    assert flow_kit.query(data_dir, opened) == [1], "nothing was left to ask"


def test_unknown_run_and_extra_fields_are_one_message(capsys, data_dir, fake_spec, tmp_path):
    (data_dir / "runs" / "20261121-120000-trial-ab12").mkdir(parents=True)
    unknown = answer(capsys, "--resume", "20261121-120000-trial-ab13")
    assert unknown.code == 2
    assert (
        "Run '20261121-120000-trial-ab13' is not in" in unknown.err
        and "nearest: 20261121-120000-trial-ab12" in unknown.err
    )
    no_manifest = answer(capsys, "--resume", "20261121-120000-trial-ab12")
    assert no_manifest.code == 6 and "spec.json cannot be read" in no_manifest.err
    field = answer(capsys, "--resume", "20261121-120000-trial-ab12", "--prompts.limit", "3")
    assert field.code == 2 and "--prompts.limit cannot be combined with --resume" in field.err
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    both = answer(capsys, "--dry-run", "--resume", "20261121-120000-trial-ab12", str(spec))
    assert both.code == 6 and "has no run.json" in both.err


@pytest.mark.parametrize("arguments", [[], ["--dry-run"], ["x.yaml", "--fresh", "--resume", "y"]])
def test_command_without_a_spec_or_with_both_ways_shows_its_usage(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        answer(capsys, *arguments)
    assert caught.value.code == 2
    assert "usage: assayline evaluate [SPEC] [--resume RUN_ID | --fresh]" in capsys.readouterr().err


def test_spec_may_stand_anywhere():
    assert parse_words(["a.yaml", "--x", "1", "--y=2"]) == ("a.yaml", {"x": "1", "y": "2"})
    assert parse_words(["--x", "1", "a.yaml", "--y=--z"]) == ("a.yaml", {"x": "1", "y": "--z"})
    with pytest.raises(SpecError, match=r"--y has no value\. hint: pass --y=VALUE"):
        parse_words(["a.yaml", "--y", "--z"])
    assert parse_words([]) == (None, {})
