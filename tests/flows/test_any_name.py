"""Whatever people call their things: it is shown as it is, breaks no table, is no markup, and commands no terminal."""

import dataclasses
import io
import json
import logging
import re
import sys
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markupsafe import escape
from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

from row_kit import Sad

from assayline.benchmark.result import Measured
from assayline.comparison.baselines import Pin
from assayline.comparison.gate import Check, GateReport
from assayline.evaluation.begin import RunResult
from assayline.report.comparison import choose_comparison_figures, describe_comparisons, say_comparisons
from assayline.report.document import Document, tabulate
from assayline.report.html import render_html
from assayline.report.make import compose_report
from assayline.report.markdown import render_markdown, render_table
from assayline.report.run.comparison import LIMITS
from assayline.report.run.rows import ReportRows, read_report
from assayline.report.sweep import BenchmarkRows, compose_benchmark
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.words import make_visible
from flows.cli.baseline import PINS
from flows.cli.score import SCORES
from flows.cli.tables import print_benchmark, print_gate, print_result, tabulate_metrics
from flows.cli.words import print_table, print_text
from flows.live.logs import speak_in_sentences
from flows.live.watch import log_console

MARKUP = (
    "[/b]",
    "[b]",
    "[",
    "|",
    "`",
    "```",
    "<b>",
    "</script>",
    "&lt;",
    "*x*",
    "\\",
    ":smile:",
    "%s",
    "{{ 1 }}",
    "{% x",
)
SIGNS = ("\n", "\r\n", "\t", "\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x00", "\x08", "\x7f", "\u2028", "é", "漢")
pieces = st.sampled_from(MARKUP + SIGNS) | st.text(max_size=5)
names = st.lists(pieces, min_size=1, max_size=6).map("".join).filter(bool)
MARK = "themark"
"""Stands for a name in rows of the database, until a name takes its place."""


def rename(value: Any, name: str) -> Any:
    """The rows with the name in place of its mark; the spec is JSON, and has it as JSON does."""
    match value:
        case str() if value.startswith("{"):
            return value.replace(MARK, json.dumps(name)[1:-1])
        case str():
            return value.replace(MARK, name)
        case dict():
            return {key: rename(part, name) for key, part in value.items()}
        case list():
            return [rename(part, name) for part in value]
        case _ if dataclasses.is_dataclass(value):
            parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return type(value)(**{key: rename(part, name) for key, part in parts.items()})
        case _:
            return value


def result_of(name: str) -> RunResult:
    row = {"value": 0.5, "unit": "share", "low": 0.25, "high": 0.75, "n": 2, "source": "accuracy.mean"}
    metrics = [{**row, "metric": f"{what} ({name})"} for what in ("accuracy", "goodput", "pass@5")]
    return RunResult("run", f"/data/{name}/a.duckdb", 1, metrics, f"/data/{name}/report.html")


def spec_of(name: str) -> Any:
    prompts = {"name": name, "source": {"kind": "inline", "rows": [{"prompt": "p"}]}}
    return parse_spec({"name": name, "model": f"/models/{name}", "prompts": prompts})


def gate_of(name: str) -> GateReport:
    words = f"{name} went from 0.5 to 0.4."
    return GateReport("run", name, [Check(f"accuracy, {name}", "broken", words, 0.4, 0.5, 0.02, "share")])


def limit_of(name: str) -> dict[str, Any]:
    values = {"candidate_value": 0.4, "baseline_value": 0.5, "limit_value": 0.02, "unit": "share"}
    return {"limit_on": f"accuracy, {name}", "verdict": "broken", "words": f"{name} went to 0.4.", **values}


def benchmark_of(name: str) -> list[Measured]:
    metric = {"repeats": 5, "median_value": 1.0, "lowest_value": 0.5, "highest_value": 2.0, "unit": "1/s"}
    change = {
        "baseline_median": 1.0,
        "shift_low": -0.5,
        "shift_high": None,
        "relative_shift": 0.1,
        "ratio": 1.1,
        "ratio_low": 0.5,
        "ratio_high": 2.0,
        "p_value": 0.5,
        "in_family": True,
        "holm_p": 0.5,
        "verdict": "unclear",
    }
    return [
        Measured(f"{name}=1", "1", 5, {"requests_per_s": metric}),
        Measured(f"{name}=2", "2", 5, {"requests_per_s": metric}, {"requests_per_s": change}),
    ]


def compared(name: str) -> Document:
    measured = benchmark_of(name)
    figures, sections = choose_comparison_figures(measured), describe_comparisons(measured, [])
    return Document("title", "subtitle", "completed", say_comparisons(measured), figures, sections)


def show_all(name: str, width: int) -> str:
    """What commands print of things with this name."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    print_result(result_of(name), spec_of(name), console)
    print_gate(gate_of(name), console)
    print_benchmark(name, benchmark_of(name), console)
    print_table(tabulate("Baselines", PINS, [dataclasses.asdict(Pin(name, "run", "now", name))]), console)
    score = {"scorer": name, "kind": "regex", "mean": 0.5, "mean_low": None, "mean_high": None}
    score["mean_without_errors"] = 0.5
    counts = {"right_samples": 1, "samples": 2, "prompts": 2}
    print_table(tabulate("Scores", SCORES, [{**score, **counts}]), console)
    print_text(f"spec      {name}", console)
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
    if len(lines) == 1:
        for words in (f"accuracy ({name})", f"accuracy, {name}", f"{name}=2", f"spec {name}", f"on {name}, run run"):
            assert squash(make_visible(words)) in squash(shown)


@given(name=names, width=st.sampled_from([1, 20, 40, 110]))
@settings(max_examples=50)
def test_no_name_is_too_much_for_a_narrow_terminal(name, width):
    assert not controls(show_all(name, width))


@given(name=names)
def test_a_page_in_prefect_has_the_same_tables_whatever_a_name_is(name):
    for describe in (
        lambda name: render_table(tabulate_metrics(result_of(name))),
        lambda name: render_table(tabulate("Limits", LIMITS, [limit_of(name)])),
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


@pytest.fixture(scope="module")
def marked_rows(tmp_path_factory: pytest.TempPathFactory) -> ReportRows:
    """A run whose model, prompt set, scorer and objective are called by the mark."""
    own = Settings(data_dir=tmp_path_factory.mktemp("marked"))
    timed = {"first_token_at_s": 1.5, "last_token_at_s": 2.0, "finished_at_s": 2.0, "output_tokens": 5, "text": "a"}
    answers: list[dict[str, Any]] = [
        {"sent_at_s": 1.0, "arrived_at_s": 1.0, **timed, "score": score} for score in (1.0, 0.0)
    ]
    Sad(own).given("run", "completed", *answers, {"error_kind": MARK, "error_message": "no"}, message=MARK)
    with connect(own.database_path, 10) as connection:
        connection.execute(
            "update runs set name = ?, model = ?, prompt_set = ?, host_name = ?, "
            """spec_json = json_merge_patch(spec_json, json_object('name', ?, 'metadata', ?))""",
            [MARK] * 6,
        )
        for table in ("scorers", "scores"):
            connection.execute(f"update {table} set scorer = ?", [MARK])
        connection.execute("insert into slos (run_id, slo, metric, limit_s) values ('run', ?, 'e2e_s', 2)", [MARK])
        connection.execute(
            "insert into loads (run_id, arrival, warmup_s, cooldown_s) values ('run', 'all_at_once', 0, 0)"
        )
        rows = read_report(connection, "run")
    assert MARK in str(rows.metrics) and rows.load is not None and rows.load.goodput[0]["slo"] == MARK
    return rows


def documents(rows: ReportRows, name: str) -> list[Document]:
    run = {"name": MARK, "run_id": "run", "config_id": "1", "state": "completed", "message": MARK, "model": MARK}
    run |= {"prompt_set": MARK, "started_at": datetime(2026, 1, 1), "spec_json": rows.run["spec_json"]}
    failed = {**run, "config_id": "2", "state": "failed"}
    median = {"config_id": "1", "metric": "accuracy", "unit": "share", "repeats": 5}
    median |= {"median_value": 1.0, "lowest_value": 0.5, "highest_value": 2.0}
    measured = [Measured(MARK, "1", 5, {"accuracy": median}), Measured(MARK, "2", 0, {})]
    values = [{"config_id": "1", "metric": "accuracy", "unit": "share", "value": 1.0}]
    benchmark = BenchmarkRows(MARK, [run, failed], [], [], [], measured, values)
    return [compose_report(rename(rows, name)), compose_benchmark(rename(benchmark, name))]


class Elements(HTMLParser):
    """The elements of a page, with their attributes' names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.feed(re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))


@pytest.mark.slow
@given(name=names)
@example(name="".join(MARKUP + SIGNS))
@settings(max_examples=3)  # drawing takes half a second
def test_a_report_has_the_same_shape_whatever_a_name_is(marked_rows, tmp_path_factory, name):
    name = f"n{name}n"  # a line that a name stands alone in is not left out
    cache = tmp_path_factory.getbasetemp()
    for document, plain in zip(documents(marked_rows, name), documents(marked_rows, MARK), strict=True):
        page = render_html(document, cache)
        assert str(escape(name)) in page
        assert Elements(page).found == Elements(render_html(plain, cache)).found
        assert outline(render_markdown(document)) == outline(render_markdown(plain))


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


def test_what_a_terminal_would_obey_is_written_as_an_escape():
    assert make_visible("a\x1b[31mb\x07c\x9bd\re\x7f\udcff") == r"a\x1b[31mb\x07c\x9bd\re\x7f\udcff"
    assert make_visible("two\n\tlines, é 漢 👩‍🔬") == "two\n\tlines, é 漢 👩‍🔬"
