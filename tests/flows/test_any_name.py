"""Names with any characters: shown unchanged, without breaking tables, markup or the terminal."""

import dataclasses
import io
import json
import logging
import re
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console

from assayline.benchmark.result import Measured
from assayline.comparison.baselines import Pin
from assayline.comparison.gate import Check, GateReport
from assayline.flows.cli.list_baselines import PINS
from assayline.flows.cli.score import SCORES
from assayline.flows.cli.tables import BENCHMARK_SECTIONS, print_gate, print_result
from assayline.flows.cli.terminal import log_console
from assayline.flows.cli.words import print_page, print_table, print_text
from assayline.flows.live.logs import speak_in_sentences
from assayline.report.compared import tabulate_limits
from assayline.report.comparison import (
    choose_comparison_figures,
    describe_repeats,
    describe_speed,
    say_comparisons,
)
from assayline.report.document import Document, tabulate
from assayline.report.markdown import render_markdown, render_table
from assayline.report.measures import tabulate_metrics
from assayline.run.evaluation import RunResult
from assayline.spec.file import parse_spec
from assayline.stats.worse import Comparison
from assayline.words import make_visible

MARKUP = ("[/b]", "[b]", "[", "|", "`", "```", "<b>", "</script>", "&lt;", "*x*", "\\", ":smile:", "%s", "{{ 1 }}",
          "{% x")  # fmt: skip
SIGNS = ("\n", "\r\n", "\t", "\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x00", "\x08", "\x7f", "\u2028", "é", "漢")
pieces = st.sampled_from(MARKUP + SIGNS) | st.text(max_size=5)
names = st.lists(pieces, min_size=1, max_size=6).map("".join).filter(bool)
MARK = "themark"
"""Stands for a name in rows of the database, until a name takes its place."""


def result_of(name: str) -> RunResult:
    row = {"value": 0.5, "unit": "share", "low": 0.25, "high": 0.75, "n": 2, "source": "accuracy.mean"}
    metrics = [{**row, "metric": f"{what} ({name})"} for what in ("accuracy", "goodput", "pass@5")]
    return RunResult("run", f"/data/{name}/a.duckdb", 1, metrics, f"/data/{name}/report.html")


def spec_of(name: str) -> Any:
    prompts = {"name": name, "source": {"kind": "inline", "rows": [{"prompt": "p"}]}}
    return parse_spec({"name": name, "model": f"/models/{name}", "prompts": prompts})


def gate_of(name: str) -> GateReport:
    words = f"{name} went from 0.5 to 0.4."
    return GateReport("run", name, [Check(f"accuracy, {name}", "fail", words, 0.4, 0.5, 0.02, "share")])


def benchmark_of(name: str) -> list[Measured]:
    metric = {
        "repeats": 5,
        "values": [0.5, 1.0, 2.0],
        "median_value": 1.0,
        "lowest_value": 0.5,
        "highest_value": 2.0,
        "unit": "1/s",
        "higher_is_better": True,
    }
    change = Comparison(
        metric="requests_per_s", value=0.5, baseline_value=0.5, counts=(5, 5), difference=0.5, low=-0.5, high=1.5,
        limit=0.1, p_value=0.5, p_beyond=0.5, method="repeats",
    )  # fmt: skip
    references = {"requests_per_s": f"x={name} 1"}
    return [
        Measured(f"x={name} 1", "1", 5, {"requests_per_s": metric}),
        Measured(f"x={name} 2", "2", 5, {"requests_per_s": metric}, {"requests_per_s": change}, references),
    ]


def compared(name: str) -> Document:
    measured = benchmark_of(name)
    figures, sections = (
        choose_comparison_figures(measured, []),
        [describe_speed(measured), describe_repeats(measured)],
    )
    return Document.of("title", "subtitle", "completed", say_comparisons(measured, [], None), figures, sections)


def show_all(name: str, width: int) -> str:
    """Return the output of commands for things with this name."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    score = {"scorer": name, "kind": "regex", "mean": 0.5, "mean_low": None, "mean_high": None}
    score["mean_without_errors"] = 0.5
    counts = {"right_samples": 1, "samples": 2, "prompts": 2}
    with patch("assayline.flows.cli.words.plain_console", lambda: console):
        print_result(result_of(name), spec_of(name))
        print_gate(gate_of(name))
        print_page(compared(name), *BENCHMARK_SECTIONS)
        print_table(tabulate("Baselines", PINS, [dataclasses.asdict(Pin(name, "run", "now", name))]))
        print_table(tabulate("Scores", SCORES, [{**score, **counts}]))
        print_text(f"spec      {name}")
    return file.getvalue()


def squash(text: str) -> str:
    return "".join(text.split())


def controls(text: str) -> set[str]:
    return {sign for sign in text if (ord(sign) < 32 or 127 <= ord(sign) < 160) and sign not in "\n\t"}


@given(name=names)
@settings(max_examples=60)
def test_the_terminal_shows_every_name_as_it_is(name):
    shown = show_all(name, width=500)
    assert not controls(shown)
    lines = make_visible(name).split("\n")
    assert all(squash(line) in squash(shown) for line in lines)
    if len(lines) == 1 and "\t" not in name:  # Rich measures a tab before it expands it, and wraps its cell
        for words in (f"accuracy ({name})", f"accuracy, {name}", f"x {name} 2", f"spec {name}", f"on {name}, run run"):
            assert squash(make_visible(words)) in squash(shown)


@given(name=names, width=st.sampled_from([1, 20, 40, 110]))
@settings(max_examples=50)
def test_no_name_is_too_much_for_a_narrow_terminal(name, width):
    assert not controls(show_all(name, width))


@given(name=names)
def test_a_page_in_prefect_has_the_same_tables_whatever_a_name_is(name):
    for describe in (
        lambda name: render_table(tabulate_metrics(result_of(name).metrics)),
        lambda name: render_table(tabulate_limits("Limits", gate_of(name).checks, has_words=True)),
        lambda name: render_markdown(compared(name)),
    ):
        page = describe(name)
        assert outline(page) == outline(describe(MARK))
        assert not controls(page)
        assert json.dumps(page)


def outline(markdown: str) -> list[str | int]:
    """By line, how many cells it has, if it is of a table, or what kind of line it is."""
    return [len(split_cells(line)) if line.startswith("|") else line[:2].strip()[:1] for line in markdown.split("\n")]


def split_cells(line: str) -> list[str]:
    return re.split(r"\|", re.sub(r"\\.", "", line))


@given(name=names)
@settings(max_examples=50)
@pytest.mark.parametrize("has_bar", [True, False])
def test_a_log_line_shows_every_name_as_it_is(has_bar, name):
    speak_in_sentences()
    file = io.StringIO()
    handler = PrefectConsoleHandler(stream=file)
    if has_bar:
        handler.console = log_console()
        handler.console.file = file
    log = logging.getLogger("prefect.flow_runs")
    log.addHandler(handler)
    try:
        log.warning("Run %d of %d: %s", 1, 2, name)
        log.error(f"{name} is broken.")
    finally:
        log.removeHandler(handler)
    if has_bar or ":" not in name:  # without the bar the console is Prefect's own, which knows :smile:
        for words in (f"Run 1 of 2: {name}", f"{name} is broken."):
            assert squash(make_visible(words)) in squash(file.getvalue())
    assert not controls(file.getvalue())


def test_control_characters_are_printed_as_escapes():
    assert make_visible("a\x1b[31mb\x07c\x9bd\re\x7f\udcff") == r"a\x1b[31mb\x07c\x9bd\re\x7f\udcff"
    assert make_visible("two\n\tlines, é 漢 👩‍🔬") == "two\n\tlines, é 漢 👩‍🔬"
