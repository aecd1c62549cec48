"""`assayline COMMAND` as a person types it: one command, one list of what there is, one way to end."""

import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import flow_kit
import pytest
from run_kit import PATIENCE_S

import assayline
from assayline import __version__
from assayline.errors import AssaylineError, PrefectUnreachableError
from assayline.flows import cli
from assayline.flows.cli.options import COMMANDS
from assayline.flows.cli.process import Terminated

ROOT = Path(__file__).resolve().parents[2]
FRONT_DOOR = Path(sys.executable).parent / "assayline"
REBUILD_FOR_EVER = """
import assayline.flows.cli.db_rebuild, sys, time
def run(arguments):
    print("begun", flush=True)
    time.sleep(60)
assayline.flows.cli.db_rebuild.run = run
from assayline.flows.cli import main
sys.argv = ["assayline", "db", "rebuild", "--all"]
main()
"""


def call(*arguments: str | Path) -> flow_kit.Finished:
    return flow_kit.run_command([str(FRONT_DOOR), *map(str, arguments)], dict(os.environ))


def test_set_up_makes_a_console_command_of_the_front_door():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"assayline": "assayline.flows.cli:main"}
    assert os.access(FRONT_DOOR, os.X_OK), "make setup writes it"


def test_help_lists_every_command_with_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it works from any folder
    run = call("--help")
    assert run.code == 0 and "10 Prefect's API is unreachable, 11 unexpected error" in run.out
    for name, line in COMMANDS.items():
        assert re.search(rf"^    {name} +{re.escape(line)}$", run.out, re.MULTILINE)
    assert call("--version").out == f"assayline {__version__}\n"


def test_usage_names_the_console_command_however_it_was_called():
    for way in ([str(FRONT_DOOR)], [sys.executable, "-m", "assayline"]):
        called = flow_kit.run_command([*way, "score", "--help"], dict(os.environ)).out
        assert called.startswith("usage: assayline score [-h]")
        assert "  assayline score RUN_ID --scorer numeric\n" in called


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evalaute", "spec.yaml"], "unknown command 'evalaute': did you mean 'evaluate'?"),
        (
            ["dance"],
            "unknown command 'dance': known: baseline, benchmark, bisect, compare, db export, db rebuild, delete",
        ),
        (["list", "rnus"], "unknown command 'list rnus': did you mean 'list runs'?"),
    ],
)
def test_an_unknown_command_is_one_message(capsys, words, sentence):
    with pytest.raises(SystemExit) as caught:
        cli.run_words(words)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        ([], 2, "list runs"),
        (["list"], 2, "list runs"),
        (["list", "--help"], 0, "list runs"),
        (["db"], 2, "db export"),
    ],
)
def test_a_front_door_without_a_command_prints_those_that_there_are(capsys, words, code, shown):
    assert cli.run_words(words) == code
    out = capsys.readouterr().out
    assert f"\n    {shown} " in out and ("  evaluate" in out) == (not words)


def test_short_words_stand_for_reports_and_options_are_corrected(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run_words(["leaderboard"]) == cli.run_words(["history", "night"]) == 6
    assert capsys.readouterr().err.count("error: Database not found at") == 2
    with pytest.raises(SystemExit) as ended:
        cli.run_words(["history", "--help"])
    assert ended.value.code == 0 and "--history NAME" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.run_words(["report", "--leaderbord"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --leaderbord; did you mean '--leaderboard'?\n")


def test_error_prints_a_message_and_sets_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path))
    unknown = call("report", "nobody")
    assert unknown.code == 6 and unknown.err.startswith("error: ") and "Traceback" not in unknown.err
    assert flow_kit.run_here("score", "nobody").code == 2
    assert flow_kit.run_here("report", "--leaderboard").err.startswith("error: Database not found at")


def test_notes_follow_the_sentence_of_an_interruption(capsys, monkeypatch):
    def end(arguments: list[str]) -> int:
        error = Terminated()
        error.add_note("Run x is unfinished.")
        raise error

    monkeypatch.setattr("assayline.flows.cli.db_rebuild.run", end)
    assert cli.run("db rebuild", []) == 143
    assert capsys.readouterr().err == "Cancelled. Finished results are stored.\nRun x is unfinished.\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_a_command_with_a_message(number, code):
    command = [sys.executable, "-c", REBUILD_FOR_EVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (code, "Cancelled. Finished results are stored.\n")


def test_a_defect_is_a_traceback_and_exit_code_11():
    script = REBUILD_FOR_EVER.replace("time.sleep(60)", "raise ZeroDivisionError")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 11 and "Traceback" in run.stderr
    assert run.stderr.endswith(
        "error: Unexpected ZeroDivisionError, a bug in assayline. hint: report it with the traceback.\n"
    )


def test_an_output_that_is_closed_is_exit_code_141():
    prints = "from flows.cli.process import leave_after; from assayline.flows.cli.words import plain_console\n"
    prints += "leave_after(lambda: plain_console().print('a table') or 0)"
    with subprocess.Popen([sys.executable, "-c", prints], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(PATIENCE_S)) == (b"", 141)


def test_exit_code_1_belongs_to_gates_and_suites_alone():
    for module in pkgutil.walk_packages(assayline.__path__, "assayline."):
        if module.name.startswith(
            (
                "assayline.errors",
                "assayline.comparison",
                "assayline.benchmark",
                "assayline.prompts",
                "assayline.run",
                "assayline.store",
            )
        ):
            importlib.import_module(module.name)
    found, left = set(), [AssaylineError]
    while left:
        found.add(left[0])
        left += left.pop(0).__subclasses__()
    assert {error.__name__ for error in found if error.exit_code == 1} == {"GateFailedError", "NoGoError"}
    assert AssaylineError.exit_code == 11 and PrefectUnreachableError.exit_code == 10


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_names_the_exit_codes_of_every_command(command, capsys):
    with pytest.raises(SystemExit):
        cli.run(command, ["--help"])
    shown = capsys.readouterr().out
    assert "Exit codes: 0 " in shown
    assert ("--prompts.limit 10" in shown) == (command == "evaluate")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        # The client's own words: httpx, of a port that nobody listens on, and of a URL without a scheme.
        (
            "http://me:secret@127.0.0.1:9/api",
            "http://127.0.0.1:9/api: [Errno 111] Connection refused",
        ),
        ("localhost:4200", "localhost:4200: Request URL has an unsupported protocol 'localhost://'"),
    ],
)
def test_unreachable_prefect_api_prints_one_message_and_exits_with_10(url, reason, tmp_path):
    env = {**os.environ, "PREFECT_API_URL": url, "PREFECT_HOME": str(tmp_path), "ASSAYLINE_DATA_DIR": str(tmp_path)}
    run = flow_kit.run_command([sys.executable, "-m", "assayline", "gate", "some-run", "--baseline", "stable"], env)
    assert run.code == 10, run.err
    assert run.err.startswith(
        f"error: Cannot reach Prefect's API at {reason}. hint: start it with `prefect server start`"
    )
    assert run.err.count("\n") == 1 and not run.out


@pytest.mark.parametrize(
    ("home", "code", "words"),
    [
        ("home", 10, "error: Prefect's temporary server does not answer: Timed out while attempting"),
        ("file/home", 14, "error: Cannot write to Prefect's folder {home}: Not a directory. hint: set PREFECT_HOME"),
    ],
)
def test_prefect_server_that_does_not_start_prints_one_error(home, code, words, tmp_path):
    (tmp_path / "file").touch()
    waits = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "1", "PREFECT_HOME": str(tmp_path / home)}
    env = {**os.environ, "ASSAYLINE_DATA_DIR": str(tmp_path / "data"), "PREFECT_API_URL": "", **waits}
    run = flow_kit.run_command(flow_kit.evaluate_command("examples/arithmetic.yaml", "--prefect"), env)
    assert run.code == code, run.err
    assert words.format(home=tmp_path / home) in run.err
    assert "Traceback" not in run.err and not run.out and not list(tmp_path.glob("data/runs/*"))


def test_a_terminal_without_utf_8_gets_plain_signs():
    assert "−36.1\u00a0points, 559 µs · 日".encode("ascii", "plain") == b"-36.1 points, 559 us - ?"
