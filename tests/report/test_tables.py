"""Parts of a page before it is one: tables, numbers and money, and names above a chart."""

import io

import pytest
from rich.console import Console

from assayline.flows.cli.words import print_table
from assayline.report.charts import LETTER_PIXELS, LINE_PIXELS, MOST_LINES, NARROWEST_PIXELS, draw_line, name_marks
from assayline.report.document import Column, Document, Figure, Section, tabulate
from assayline.report.html import render_html
from assayline.words import show_limit, show_money, show_name, show_note, show_seconds, show_value


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


def test_printed_table_keeps_an_id_on_one_line():
    run_id, console = "20261127-033245-arithmetic-5a08", Console(width=60, file=io.StringIO())
    columns = (Column("run", "id", show_name), Column("settings", "text"))
    print_table(tabulate("Runs", columns, [{"id": run_id, "text": "a long text of many words " * 4}]), console)
    lines = console.file.getvalue().splitlines()
    assert any(run_id in line for line in lines) and max(map(len, lines)) <= 60


def test_tabulate_leaves_out_columns_that_are_empty_in_every_row():
    columns = (Column("name", "a"), Column("none", "b"), Column("dash", "b", show_value), Column("some", "c"))
    table = tabulate("Table", columns, [{"a": "", "b": "", "c": ""}, {"a": "", "b": None, "c": "x"}])
    assert [column.header for column in table.columns] == ["name", "some"], "the first one names the row"
    assert table.cells == [["", ""], ["", "x"]]
    assert len(tabulate("Nothing", columns, []).columns) == 4


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0\u00a0EUR"),
        (1.9e-7, "0.19\u00a0µEUR"),
        (0.00042, "420\u00a0µEUR"),
        (3e-12, "0.003\u00a0nEUR"),
        (0.0421, "0.0421\u00a0EUR"),
        (1234.5, "1,234\u00a0EUR"),
    ],
)
def test_show_money_has_digits_that_can_be_read(value, shown):
    assert show_money(value, "EUR") == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(999.5, "999.5"), (4597.3, "4,597"), (27014.2, "27,014"), (4597, "4,597")]
)
def test_show_value_separates_thousands(value, shown):
    assert show_value(value) == shown


def test_show_seconds_never_rounds_up_to_a_thousand_of_a_unit():
    assert [show_seconds(value) for value in (0.00099999, 0.0009, 0.9999)] == ["1\u00a0ms", "900\u00a0µs", "1\u00a0s"]


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


@pytest.mark.parametrize(("highest", "domain"), [(0.003, None), (0.6, [0, 1])])
def test_draw_line_of_a_low_share_has_an_axis_on_which_it_is_seen(highest, domain):
    slices = [{"begins_at_s": float(i), "ends_at_s": i + 1.0, "kv": value} for i, value in enumerate((0.0, highest))]
    spec = draw_line(slices, slices, [], "kv", "share of the KV cache in use", is_share=True)
    assert spec["layer"][0]["encoding"]["y"]["scale"].get("domain") == domain


def test_name_marks_lie_neither_on_each_other_nor_outside_a_narrow_chart():
    marks = [(at, at / 100, "prompts, settings") for at in (0, 2, 4, 45, 55, 90, 97, 99, 100)]
    drawn = []
    for layer in (chart.to_dict() for chart in name_marks(marks)):
        (row,) = next(iter(layer["datasets"].values()))
        width, x = LETTER_PIXELS * len(row["name"]), row["at"] / 100 * NARROWEST_PIXELS
        begin = x - width if layer["mark"]["align"] == "right" else x
        drawn.append((layer["encoding"]["y"]["value"], begin, begin + width))
    assert 2 * MOST_LINES <= len(drawn) < len(marks), "one that has no room left has a tooltip"
    assert len({y for y, _, _ in drawn}) == MOST_LINES and min(y for y, _, _ in drawn) > -MOST_LINES * LINE_PIXELS
    for number, (y, begin, end) in enumerate(drawn):
        assert begin >= 0 and end <= NARROWEST_PIXELS
        assert all(y != other or end <= left or right <= begin for other, left, right in drawn[:number])
