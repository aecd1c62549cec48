"""The page of a history: what it says, what it draws, and what it makes of few, failed and hostile runs."""

import dataclasses
import re

import pytest
from row_kit import NAME, NightOf, given_nights, noisy_nights, read_charts, read_page, text_of
from run_kit import settings_in

from assayline.comparison.baselines import pin_baseline
from assayline.comparison.queries import read_band
from assayline.errors import SpecError
from assayline.flows.cli import run
from assayline.report.history_rows import METRICS, read_history
from assayline.report.make import Written, make_report, open_database
from assayline.settings import Settings
from assayline.store.database import connect

pytestmark = pytest.mark.slow

SLOWER = 1.25


@pytest.fixture(scope="module")
def regressed(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Thirty nights, of which the last twelve are slower, from the night on in which vLLM is a newer one."""
    settings = settings_in(tmp_path_factory.mktemp("history"))
    nights = noisy_nights(30, verdict={"errors": "pass"}, baseline="stable")
    for number in range(18, 30):
        nights[number] = dataclasses.replace(
            nights[number], request_s=nights[number].request_s * SLOWER, vllm="0.31.0", verdict={"e2e_p95_s": "fail"}
        )
    run_ids = given_nights(settings, nights)
    with connect(settings.database_path, 10) as connection:
        pin_baseline(connection, settings.data_dir, "stable", run_ids[9])
    return settings


@pytest.fixture(scope="module")
def page(regressed: Settings, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return make_report(regressed, NAME, folder=tmp_path_factory.mktemp("page"), kind="history")


def test_history_report_shows_when_and_by_how_much_a_metric_shifted(page):
    text = read_page(page.html)
    assert "Output tokens/s has been worse since 2026-10-19 01:30" in text
    change = re.search(r"Output tokens/s has been worse since .*? −([\d.]+)% \(95% interval −([\d.]+) to −", text)
    assert change is not None and float(change[1]) == pytest.approx(100 * (1 - 1 / SLOWER), abs=3)
    assert "Changed since the previous run: vLLM (0.30.0 → 0.31.0)." in text
    assert "TTFT p50 has been worse since 2026-10-19 01:30" in text
    assert "Accuracy has been" not in text
    assert "12 of 30 runs judged by a gate failed a limit." in text
    assert "failed its limits: E2E p95.</p>" in text


def test_the_charts_have_every_night_the_band_the_levels_and_the_marks(regressed, page):
    charts = read_charts(page.html)
    assert len(charts) == len(METRICS) - 1, "no run has a price"
    drawn = {metric: [row for rows in layers for row in rows] for metric, layers in zip(METRICS, charts, strict=False)}
    rows = drawn["output_tokens_per_s"]
    nights = {row["run"]: row for row in rows if "run" in row}
    with connect(regressed.database_path, 10) as connection:
        known = dict(connection.execute("select run_id, output_tokens_per_s from main.run").fetchall())
        [(low, high)] = [
            (row["low"], row["high"])
            for row in read_band(connection, "night-009")
            if row["metric"] == "output_tokens_per_s"
        ]
    assert {run: row["value"] for run, row in nights.items()} == pytest.approx(known)
    assert not any(row["has_failed"] for row in nights.values())
    failed = {row["run"] for row in drawn["e2e_p95_s"] if row.get("has_failed")}
    assert len(failed) == 12, "the limit that failed"
    (band,) = (row for row in rows if "low" in row and "run" not in row)
    assert (band["low"], band["high"]) == (pytest.approx(low), pytest.approx(high))
    assert [row["at"] for row in rows if row.get("name") == "vLLM"] == ["2026-10-19T01:30:00Z"]
    levels = [row for row in rows if "until" in row and "low" not in row and row["until"] != band["until"]]
    assert [row["until"] for row in levels] == ["2026-10-19T01:30:00Z"]


def test_history_report_loads_nothing_and_both_formats_have_the_same_tables(page):
    raw = page.html.read_text(encoding="utf-8")
    assert "default-src 'none'" in raw
    assert not re.search(r"<(link|img|iframe)\b", text_of(page.html)), "the browser's test opens it"
    markdown = page.markdown.read_text(encoding="utf-8").replace("\\", "").replace("\u00a0", " ")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", read_page(page.html)))
    for line in markdown.splitlines():
        if line.startswith("| 2026-"):
            for cell in line.strip("| ").split(" | "):
                assert cell.strip() in text, cell


def test_history_headline_begins_with_the_limit_that_the_newest_night_failed(page):
    headline = re.findall(r'<p class="headline[^>]*>(.*?)</p>', read_page(page.html))
    assert headline[:2] == ["The latest run, 2026-10-30 01:30, failed its limits: E2E p95.", "e2e_p95_s: fail."]
    assert headline[-1] == "12 of 30 runs judged by a gate failed a limit."


def test_a_stable_history_says_so(settings, tmp_path):
    given_nights(settings, noisy_nights(24, seed=4))
    text = read_page(make_report(settings, NAME, folder=tmp_path, kind="history").html)
    assert "in 24 runs; below 30, most shifts cannot be told yet." in text
    assert "No gate has judged any of these runs." in text
    assert "No baseline is set." in text


def test_nights_that_failed_or_do_not_count_are_listed_and_not_judged(settings, tmp_path):
    nights = noisy_nights(20)
    nights[5] = dataclasses.replace(nights[5], state="failed", request_s=9.0)
    nights[8] = dataclasses.replace(nights[8], attempt=2, request_s=9.0)
    given_nights(settings, nights)
    text = read_page(make_report(settings, NAME, folder=tmp_path, kind="history").html)
    assert "it is failed, not completed" in text and "it was resumed" in text
    rows = open_database(settings).query(lambda connection: read_history(connection, NAME))
    speed = rows.values["output_tokens_per_s"]
    assert [row["position"] for row in speed if not row["is_counted"]] == [6, 9]
    assert rows.shifts == []


def test_a_short_history_a_missing_baseline_and_changed_settings_are_sentences_on_the_page(settings, tmp_path):
    """A baseline that was asked for is an error."""
    changed = noisy_nights(2, temperature=0.7, baseline="gone")
    given_nights(settings, [*noisy_nights(2, baseline="gone"), *changed])
    text = read_page(make_report(settings, NAME, folder=tmp_path, kind="history").html)
    assert "There is no baseline 'gone'" in text
    assert "sampling.temperature: 0.0 → 0.7" in text
    assert "4 counted runs cannot distinguish a level shift from chance; at least 10 are needed." in text
    with pytest.raises(SpecError, match="There is no baseline 'gone'"):
        make_report(settings, NAME, "gone", tmp_path, kind="history")


def test_other_models_under_the_name_are_said_and_have_a_page_of_their_own(settings):
    given_nights(settings, noisy_nights(2, model="models/large"))
    given_nights(settings, noisy_nights(3), first=2)
    written = make_report(settings, NAME, kind="history")
    assert ", 3 runs, " in written.document.subtitle
    assert "Other runs with this name are not shown: models/large on sums." in read_page(written.html)
    other = make_report(settings, "night-000", kind="history")
    assert ", 2 runs, " in other.document.subtitle and other.html != written.html


def test_names_of_any_kind_have_a_page_inside_the_data_folder(settings):
    names = ["<script>alert(1)</script>", "../../etc", "…" * 300]
    run_ids = given_nights(settings, [NightOf(name=name) for name in names])
    for run_id, name in zip(run_ids, names, strict=True):
        written = make_report(settings, run_id, kind="history")
        assert written.document.title == f"{name} over time"
        assert written.html.resolve().is_relative_to((settings.data_dir / "histories").resolve())
        assert "This is the first run; a history starts with the second." in read_page(written.html)
        assert "<script>alert" not in text_of(written.html)


def test_the_command_shows_a_table_and_where_the_page_is(regressed, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(regressed.data_dir))
    assert run("report", ["--history", NAME, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "night-029" in out and "16 earlier runs are in the report." in out
    assert "worse since 2026-10-19" in out
    assert f"Report: {tmp_path / 'report.html'}" in out
    for arguments, sentence in (
        (["--history", "nightli"], "There is no history 'nightli' in the database: did you mean 'nightly'?"),
        (["--history", NAME, "--baseline", "none"], "There is no baseline 'none'"),
    ):
        assert run("report", arguments) == 2
        error = capsys.readouterr().err
        assert sentence in error and "Traceback" not in error
