"""The command in a terminal: a bar and what needs attention, not every log line. The terminal is a real one (a pty)."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from rich.console import Console
from rich.progress import Task
from run_kit import PATIENCE_S

from assayline.engines.base import STARTING
from assayline.flows.cli.terminal import Bar
from assayline.flows.cli.words import has_bar, print_table
from assayline.report.document import Column, tabulate
from assayline.settings import load_settings
from assayline.words import show_name, show_number, show_text

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_in_terminal(arguments: list[str], env: dict[str, str], columns: int = 120) -> tuple[int, list[str]]:
    """Exit code, and what was on the screen at one time or another, line by line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        arguments,
        cwd=flow_kit.ROOT,
        env={**env, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        return process.wait(PATIENCE_S), re.split(r"[\r\n]+", ESCAPES.sub("", shown.decode("utf-8", "replace")))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        os.close(ours)


@pytest.fixture
def twice_asked(tmp_path: Path, slow_spec: dict[str, Any]) -> dict[str, Any]:
    """Sixty requests, and one that is asked twice, which is a warning."""
    rows = tmp_path / "slow.jsonl"
    lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
    rows.write_text("".join([*lines, lines[0]]), encoding="utf-8")
    slow_spec["sampling"]["max_tokens"] = 500
    return slow_spec


def test_a_terminal_has_a_bar_and_warnings_and_the_table(alone_env, twice_asked, tmp_path):
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", twice_asked)
    code, lines = run_in_terminal(flow_kit.evaluate_command(spec), alone_env)
    text = "\n".join(lines)
    assert code == 0, text
    bars = [line for line in lines if line.startswith("generating")]
    full = re.compile(
        r"generating +\d+% \d[\d:]+ left \d+/61, 0 errors, [\d,]+ tokens/s, max concurrency 1 after \d:[\d:]+ .*[━╸╺]"
    )
    assert any(full.match(line) for line in bars), bars[-3:]
    assert len({re.search(r"\d+/61", line)[0] for line in bars if "/61" in line}) >= 3, "it moves"  # type: ignore[index]
    begun = next(
        index for index, line in enumerate(lines) if line.startswith(("loading engine", "generating", STARTING))
    )
    ended = max(index for index, line in enumerate(lines) if line.startswith("generating"))
    logged = [line for line in lines[begun:ended] if "| " in line]
    assert any("are duplicates" in line and "WARNING" in line for line in logged)
    assert [line for line in logged if "| INFO" in line] == []
    assert "output tokens/s" in "\n".join(lines[ended:])
    assert "Report: " in "\n".join(lines[ended:])


@pytest.mark.parametrize("columns", [70, 80, 120])
def test_the_time_left_is_whole_however_narrow_the_terminal(columns, monkeypatch):
    console = Console(width=columns, force_terminal=True, color_system=None, file=io.StringIO())
    bar = Bar(console)
    bar.progress.update(
        bar.task,
        description="generating",
        completed=1_159,
        total=31_000,
        counts="1,159/31,000, 0 errors, 2,786 tokens/s, max concurrency 320",
    )
    for seconds, left in ((None, ""), (70.0, "0:01:10 left")):
        monkeypatch.setattr(Task, "time_remaining", seconds)
        with console.capture() as shown:
            console.print(bar.progress.get_renderable())
        assert re.match(rf"gen\w*…? +4% +{left} *1,159/31,000", shown.get()), shown.get()


@pytest.mark.parametrize(
    ("term", "bar", "expected"),
    [("xterm-256color", "true", True), ("xterm-256color", "false", False), ("dumb", "true", False)],
)
def test_only_a_terminal_that_can_have_a_bar_has_one(monkeypatch, term, bar, expected):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("ASSAYLINE_BAR", bar)
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            assert has_bar(load_settings()) == expected
    finally:
        os.close(ours)


@pytest.mark.parametrize("columns", [60, 78, 80, 100])
def test_a_table_breaks_no_word_however_narrow_the_terminal(columns, monkeypatch):
    rows = [("grade-school mathematics", "20261128-001946-arithmetic-64-8354", "1,172 tokens/s", "x" * 200)] * 2
    headers = ("measures", "run", "output tokens/s", "text")
    shows = (show_text, show_name, show_number, show_text)
    table = tabulate("", [Column(name, i, shows[i]) for i, name in enumerate(headers)], rows)
    console = Console(width=columns, file=io.StringIO())
    monkeypatch.setattr("assayline.flows.cli.words.plain_console", lambda: console)
    with console.capture() as shown:
        print_table(table)
    text = shown.get()
    assert all(len(line) <= columns for line in text.splitlines() if "│" in line)
    for word in ("grade-school", "mathematics", rows[0][1], "tokens/s"):
        assert word in text
    assert text.replace("│", "").replace(" ", "").replace("\n", "").count("x") >= 400


def test_output_keeps_the_signs_of_numbers_that_its_encoding_lacks():
    code = "from assayline.flows.cli import process; print('−6.5 points, ×2 → ✓'.encode('ascii', 'plain').decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "-6.5 points, x2 > ?\n"
