"""Parts of a page before it is one: tables, numbers and money, and names above a chart."""

import importlib
import pkgutil

import pytest

import assayline.flows.cli
import assayline.report.run
from assayline.report.charts import LETTER_PIXELS, LINE_PIXELS, MOST_LINES, NARROWEST_PIXELS, name_marks
from assayline.report.document import Column, Document, Figure, Section, tabulate
from assayline.report.html import render_html
from assayline.store.metrics import SHOWN
from assayline.words import name_metric, show_limit, show_name, show_note, show_value


@pytest.mark.parametrize(
    ("on", "limit", "unit", "baseline", "shown"),
    [
        ("accuracy, exact_match", 0.01, "share", 0.8, "−1\u00a0point"),
        ("weighted accuracy", 0.025, "share", 0.8, "−2.5\u00a0points"),
        ("errors", 0.05, "share", 0.0, "5%"),
        ("e2e_p95_s", 0.1, "s", 1.0, "+10%"),
        ("output_tokens_per_s", 0.05, "tokens/s", None, "−5%"),
        ("cost", 0.5, "EUR", None, "0.5"),
        ("cost_per_right_answer", 0.1, "EUR", 0.2, "+10%"),
        ("accuracy", None, "", None, "–"),
    ],
)
def test_show_limit_has_the_unit_of_the_change_that_it_allows(on, limit, unit, baseline, shown):
    assert show_limit(on, limit, unit, baseline) == shown


def test_tabulate_leaves_out_columns_that_are_empty_in_every_row():
    columns = (Column("name", "a"), Column("none", "b"), Column("dash", "b", show_value), Column("some", "c"))
    table = tabulate("Table", columns, [{"a": "", "b": "", "c": ""}, {"a": "", "b": None, "c": "x"}])
    assert [column.header for column in table.columns] == ["name", "some"], "the first one names the row"
    assert table.cells == [["", ""], ["", "x"]]
    assert len(tabulate("Nothing", columns, []).columns) == 4


def test_page_shows_a_note_below_its_row_and_keeps_names_on_one_line(tmp_path):
    columns = (Column("rank", "rank"), Column("model", "model", show_name), Column("note", "note", show_note))
    rows = [{"rank": "1", "model": "a/b", "note": "was resumed"}, {"rank": "2", "model": "c", "note": ""}]
    figures = [Figure("Throughput", "123,456\u00a0tokens/s"), Figure("Limits", "1 of 2")]
    section = Section("key", "Title", [tabulate("Table", columns, rows)])
    page = render_html(Document("t", "s", "completed", [], figures, [section]), tmp_path)
    assert '<tr class="note"><td colspan="2"><div>was resumed</div></td></tr>' in page
    assert page.count('class="note"') == 1 and ">note<" not in page
    assert '<td class="name">a/b</td>' in page
    assert '123,456 <span class="unit">tokens/s</span>' in page and '<dd class="value">1 of 2</dd>' in page


def test_name_marks_lie_neither_on_each_other_nor_outside_a_narrow_chart():
    marks = [(at, at / 100, "prompts, settings") for at in (0, 2, 4, 45, 55, 90, 97, 99, 100)]
    drawn = []
    for layer in name_marks(marks):
        (row,) = layer["data"]["values"]
        width, x = LETTER_PIXELS * len(row["name"]), row["at"] / 100 * NARROWEST_PIXELS
        begin = x - width if layer["mark"]["align"] == "right" else x
        drawn.append((layer["encoding"]["y"]["value"], begin, begin + width))
    assert 2 * MOST_LINES <= len(drawn) < len(marks), "one that has no room left has a tooltip"
    assert len({y for y, _, _ in drawn}) == MOST_LINES and min(y for y, _, _ in drawn) > -MOST_LINES * LINE_PIXELS
    for number, (y, begin, end) in enumerate(drawn):
        assert begin >= 0 and end <= NARROWEST_PIXELS
        assert all(y != other or end <= left or right <= begin for other, left, right in drawn[:number])


SECOND_NAMES = {"candidate", "this run", "is", "was", "flips"}
"""Other words for the run and its baseline."""


def list_columns():
    """Every column of a table that a page or a command shows."""
    for package in (assayline.report, assayline.report.run, assayline.flows.cli):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, value in vars(importlib.import_module(found.name)).items():
                for column in value if isinstance(value, tuple) else ():
                    if isinstance(column, Column):
                        yield f"{found.name}.{name}", column


def test_metrics_and_sides_of_a_comparison_have_one_name_in_every_table():
    columns = list(list_columns())
    assert len(columns) > 200
    for where, column in columns:
        assert column.header not in SECOND_NAMES, where
        known = column.value if isinstance(column.value, str) else ""
        if name_metric(known) != known:
            assert column.header.partition(" (")[0] == name_metric(known), where
    for shown in SHOWN:
        for metric in (shown.metric, f"{shown.metric.removesuffix('_s')}_{shown.statistic}_s"):
            assert shown.words.startswith(name_metric(metric)) or name_metric(metric) == metric
