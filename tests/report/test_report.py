"""The report: what is in it, of whatever run; and that text of prompts and answers stays text."""

import base64
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import vl_convert
from row_kit import NIGHT, NIGHT_BEFORE, NightOf, given_nights, read_charts, text_of

from assayline.comparison.queries import compare_scores
from assayline.errors import SpecError, StoreError
from assayline.flows.cli import run
from assayline.report import make
from assayline.report.charts import draw_timeline
from assayline.report.document import Document, hide_places
from assayline.report.make import Written, make_report, put_on_page
from assayline.report.markdown import render_markdown
from assayline.report.run.accuracy import _GROUPS
from assayline.report.run.comparison import say_conditions
from assayline.report.run.rows import open_run
from assayline.settings import Settings
from assayline.store.database import connect, read_rows
from assayline.store.thread import DatabaseThread
from assayline.words import show_change, show_points, show_range, show_seconds, show_share

pytestmark = pytest.mark.slow

OK = {
    "arrived_at_s": 1.0,
    "queued_at_s": 1.0,
    "scheduled_at_s": 1.1,
    "first_token_at_s": 1.5,
    "last_token_at_s": 2.0,
    "finished_at_s": 2.0,
    "output_tokens": 5,
    "text": "an answer",
}
UNASKED = {"worker": "prepare", "error_kind": "row_error", "error_message": "it was null"}
SECTIONS = [
    "Errors",
    "Accuracy",
    "Latency",
    "Over time",
    "Engines",
    "Sample prompts",
    "Configuration",
    "All metrics",
]
UNSCORED, UNTIMED = {"Accuracy", "Sample prompts"}, {"Latency", "Over time"}
HOSTILE = (
    "<script>alert(1)</script></script><script src=//evil.example/x.js></script> <img src=x onerror=alert(1)> "
    "&amp; {{ 7*7 }} ]]> <!-- `code` ```\n```\n# Heading\n| a | b |\n[link](javascript:alert(1)) **bold** ' \" \x00 "
    "\u2028 end"
)
SHOWN = HOSTILE.replace("\0", "\ufffd")


def query(settings: Settings, sql: str, *values: Any) -> Any:
    with connect(settings.database_path, 10) as connection:
        return connection.execute(sql, list(values)).fetchall()[0][0]


class Seen(HTMLParser):
    """A page as a browser takes it apart: attributes by element, and the texts of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[str, list[list[str]]] = {}
        self.texts: dict[str, list[str]] = {}
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.setdefault(tag, []).append([name for name, _ in attrs])
        self.texts.setdefault(tag, []).append("")
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside[-1]][-1] += data


def headings(page: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r"<h2[^>]*>(.*?)</h2>", page)]


@pytest.fixture(scope="module")
def written(weeks: Settings, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The page of a night."""
    return make_report(weeks, NIGHT, folder=tmp_path_factory.mktemp("night"))


@pytest.fixture(scope="module")
def compared(weeks: Settings, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The page of that night against the one before."""
    return make_report(weeks, NIGHT, NIGHT_BEFORE, tmp_path_factory.mktemp("compared"))


def test_numbers_are_those_of_the_models(weeks, written):
    page, text = html.unescape(text_of(written.html)), written.markdown.read_text(encoding="utf-8")
    assert headings(page) == ["Five questions", "Comparison with the baseline", *SECTIONS], "a gate judged it"
    accuracy = query(weeks, "select mean from accuracy where run_id = ?", NIGHT)
    tail = query(
        weeks,
        "select value from metric_value where run_id = ? and metric = 'e2e_s' and statistic = 'p95'",
        NIGHT,
    )
    model_id = query(weeks, "select model_id from runs where run_id = ?", NIGHT)
    for shown in (show_share(accuracy), show_seconds(tail), model_id, NIGHT, "an invented device", "engine_died"):
        assert shown in page
        assert shown in text.replace("\\_", "_")
    for source in ("output_tokens_per_s mean", "ttft_s p95", "accuracy mean"):
        assert source in page, "each metric of the run with its name in metric_value"
    groups = DatabaseThread(weeks).run(lambda connection: read_rows(connection, _GROUPS, NIGHT, 20))
    wrong = [row["value"] for row in groups if row["property"] == "wrong answer"]
    assert wrong and all(f"| {value} |" in text for value in wrong)
    assert "Extracted answer" not in page, "it is the output"
    assert "2 engines failed, 2 memory reductions" in page
    assert "max concurrency 80 → 40" in page
    assert "CUDA out of memory" in page


def test_charts_are_made_of_the_rows_of_their_models(weeks, written):
    _, *charts = read_charts(written.html)
    with connect(weeks.database_path, 10) as connection, open_run(connection, NIGHT) as run:
        activity, histogram = run.query("activity"), run.query("latency_histogram")
    assert [row["value"] for row in charts[3][0]] == [row["output_tokens_per_s"] for row in activity]
    ttfts = [row["requests"] for row in histogram if row["metric"] == "ttft_s"]
    assert [row["requests"] for row in charts[0][0]] == ttfts and sum(ttfts) > 10
    for chart in charts[3:]:
        failures = [row for rows in chart for row in rows if "event" in row]
        assert {row["event"] for row in failures} == {"failed, reduced"}
        assert len({row["at"] for row in failures}) == 2


def test_a_baseline_shows_what_became_worse_and_whether_by_chance(weeks, compared):
    page = html.unescape(text_of(compared.html))
    assert headings(page) == ["Five questions", "Comparison with the baseline", *SECTIONS]
    (found,) = DatabaseThread(weeks).run(lambda one: compare_scores(one, NIGHT, NIGHT_BEFORE)).values()
    difference, low, high = found.difference, found.low, found.high
    assert difference < 0
    assert f"worse than the baseline, shown beyond the limit: {show_points(difference)}" in page
    assert show_range(show_points(low), show_points(high)) in page
    change = query(
        weeks,
        "select new.value / old.value - 1 from run_metric as new join run_metric as old using (metric) "
        "where new.run_id = ? and old.run_id = ? and metric = 'output_tokens_per_s'",
        NIGHT,
        NIGHT_BEFORE,
    )
    assert show_change(change) in page
    assert page.count("Got worse: row") == 4
    assert page.count("Got better: row") == 2
    assert "Differences: model." in page
    table = page.split("Speed and cost")[-1].split("</table>")[0]
    assert ">worse<" not in table and ">better<" not in table, "they are of one run each"
    assert 'class="figure bad">\n      <dt>Accuracy' in page


LIMITS = {"errors": "pass", "accuracy, exact_match": "fail", "e2e_p95_s": "inconclusive"}


def test_report_begins_with_the_verdict_of_a_gate_and_names_fields_that_differ(settings, tmp_path):
    nights = [NightOf(), NightOf(right=20, verdict=LIMITS), NightOf(verdict={"errors": "pass"}, temperature=1.5)]
    given_nights(settings, nights)
    written = make_report(settings, "night-001", "night-000", tmp_path)
    page = html.unescape(text_of(written.html))
    assert re.findall(r'<span class="state state-worse">(\w+)</span>', page) == ["worse"], "a red badge"
    said = "This run fails its limits against the baseline: accuracy, exact_match. Inconclusive: E2E p95."
    assert re.findall(r'<p class="headline">(.*?)</p>', page) == [said]
    short, section, *_ = (part for part in written.text.split("\n## ")[1:])
    for question, answer, command in (
        ("Did it run?", "Completed: 40 of 40 requests answered. |", "view night-001"),
        (
            "Is it worse?",
            "Yes. exact_match is worse than the baseline, shown beyond",
            "gate night-001 --baseline night-000",
        ),
        ("Which prompts?", "Rows 20, 21, 22, 23 and 8 more got worse. |", "view night-001 night-000"),
        ("Since when?", "Since 2026-10-02 01:30. |", "report --history night-001"),
        (
            "What to do?",
            "Look at the answers that changed, and measure",
            "gate night-001 --baseline night-000 --remeasure",
        ),
    ):
        assert f"| {question} | {answer}" in short.replace("\\", "")
        assert f"- {question}: `assayline {command}`" in short.replace("\\", "")
        assert f"<div><code>assayline {command}</code></div>" in page
    assert "the baseline, exact_match is worse than the baseline" not in page, "said once"
    assert r"| accuracy, exact\_match | fail |" in section
    assert r"- accuracy, exact\_match: fail." in section
    assert section.index("**Limits**") < section.index("*Score changes*") < section.index("### Got worse")
    flipped = section.split("### Got worse")[1].split("###")[0]
    assert "- Output of the run: `" in flipped and "- Output of the baseline: `" in flipped

    again = make_report(settings, "night-001", folder=tmp_path)
    assert (again.document.state, again.document.headline[0]) == ("worse", said), "compared as when last judged"
    passed = make_report(settings, "night-002", "night-000", tmp_path)
    kept = "This run is within its limits against the baseline."
    assert (passed.document.state, passed.document.headline[0]) == ("completed", kept)
    page = html.unescape(text_of(passed.html))
    assert "Differences: sampling.temperature: 0.0 → 1.5." in page
    assert 'class="figure bad">\n      <dt>Accuracy' not in page
    unjudged = make_report(settings, "night-000", "night-001", tmp_path)
    assert "**Limits**" not in unjudged.text and unjudged.document.headline[0].startswith("Run completed")


class Counted:
    """A connection that keeps the queries."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.queries = connection, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, query: str, *values: Any) -> Any:
        self.queries.append(query)
        return self.connection.execute(query, *values)


def test_compose_run_reads_its_rows_with_few_queries(weeks):
    """Planning a query takes more time than running it: 100 of them were a second of CPU."""
    with connect(weeks.database_path, 10) as connection:
        counted: Any = Counted(connection)
        make.compose_run(counted, NIGHT, NIGHT_BEFORE, weeks.data_dir)
    of_answers = [query for query in counted.queries if "reasoning" in query]
    assert len(counted.queries) <= 70 and len(of_answers) <= 4, (len(counted.queries), len(of_answers))


@pytest.mark.parametrize(
    ("high", "label"), [(0.34, "0.3"), (3.4, "3"), (340, "300"), (3_400, "3,000"), (3_400_000, "3,000,000")]
)
def test_the_axis_of_a_timeline_has_plain_numbers(high, label):
    slices = [{"from": second, "until": second + 1, "value": high / (second + 1)} for second in range(9)]
    svg = vl_convert.vegalite_to_svg(draw_timeline(slices, "tokens per second", [], span=(0, 9)))
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert label in labels and not [text for text in labels if re.search(r"\de[+-]?\d", text)]


def test_put_on_page_draws_charts_as_images(compared):
    page = put_on_page(compared.document)
    pictures = re.findall(r"!\[[^\]]+\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", page)
    assert len(pictures) == len(read_charts(compared.html)) == 6
    for picture in pictures:
        drawn = base64.b64decode(picture).decode()
        assert drawn.startswith("<svg") and "#2f6f9f" in drawn, "in the page's colours"
        assert "var(" not in drawn
    assert len(page) < make.PAGE_BYTES
    assert str(compared.html.parent) not in page and "HTML page" not in page


def test_put_on_page_leaves_out_images_then_sections_when_there_is_no_room(compared, monkeypatch):
    document = compared.document
    words = put_on_page(replace(document, sections=[]))
    whole = len(render_markdown(document).encode())
    for most, pictures in ((whole + 20_000, 1), (whole, 0), (whole - 1, 0), (len(words.encode()), 0)):
        monkeypatch.setattr(make, "PAGE_BYTES", most)
        page = put_on_page(document)
        assert len(page.encode()) <= most + 100 * pictures and (page.count("](data:image") >= 1) == bool(pictures)
        assert page.startswith(words.rstrip()) and ("## Comparison with the baseline" in page) == (
            most > len(words) + 10_000
        )


HERE = "host; assayline 1; CPU, vLLM 0.30, torch 2, driver 5; prompts a"


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        (HERE, ""),
        (
            f"{HERE}; longest answers first",
            "The order of requests differs, .* Run: longest answers first. Base.*: as",
        ),
        (HERE.replace("0.30", "0.31"), "The version of vLLM differs, .* Run: vLLM 0.31. Baseline: vLLM 0.30."),
        (HERE.replace("driver 5", "driver 6"), "The driver differs, .* Run: driver 6. Baseline: driver 5."),
        (HERE.replace("CPU", "H100"), "The machine differs, .* Run: H100. Baseline: CPU."),
        (
            HERE.replace("prompts a", "prompts b").replace("host", "pod"),
            "The machine and the content of the prompts differ,",
        ),
    ],
)
def test_conditions_are_named_only_if_they_differ(ours, named):
    assert re.match(named or "$", say_conditions(ours, HERE))


def test_runs_without_a_prompt_in_common_are_not_compared(sad, tmp_path):
    sad.given("one", "completed", {**OK, "score": 1.0})
    sad.given("none", "completed", dict(OK))
    page = html.unescape(text_of(make_report(sad.settings, "none", "one", tmp_path).html))
    assert "share no scored prompt" in page


@pytest.mark.parametrize(
    ("state", "lacking", "answers", "sentences"),
    [
        (
            "failed",
            {"Errors", *UNSCORED, *UNTIMED},
            [],
            ["No request was answered", "No engine was recorded", "Run failed: it broke"],
        ),
        (
            "cancelled",
            UNSCORED,
            [dict(OK), {}],
            ["Run cancelled", "1 of 2 requests answered", "1 request has no result"],
        ),
        ("completed", {"Errors", *UNSCORED}, [dict(OK)], ["Nothing was scored", "engine sent no telemetry"]),
        (
            "completed",
            {"Errors", *UNSCORED, *UNTIMED},
            [{"text": "quick"}],
            ["No times were reported", "Nothing was scored"],
        ),
        (
            "completed",
            UNTIMED,
            [{"error_kind": "bad", "error_message": "it was bad", "score": 0.0, "target": "y"}] * 3,
            [
                "Run completed: 0% correct, 3 of 3 requests failed.",
                "No prompt was answered correctly",
                "it was bad",
                "Example of bad: row 0 of the source",
            ],
        ),
        (
            "completed",
            {"Errors"},
            [{**OK, "score": 1.0, "target": "y"}],
            ["Every prompt was answered correctly", "Run completed: 100% correct"],
        ),
        (
            "completed",
            set(),
            [{**OK, "score": 1.0, "target": "y"}, {**UNASKED, "score": 0.0, "target": "y"}],
            ["Run completed: 50% correct", "1 row could not be sent", "exact_match, 95%: "],
        ),
    ],
    ids=["nothing", "cancelled", "no target", "no times", "all errors", "one request", "not asked"],
)
def test_report_shows_no_section_without_data(sad, tmp_path, state, lacking, answers, sentences):
    sad.given("run", state, *map(dict, answers), message="it broke" if state == "failed" else None)
    written = make_report(sad.settings, "run", folder=tmp_path)
    page = html.unescape(text_of(written.html))
    assert headings(page) == [section for section in SECTIONS if section not in lacking]
    for sentence in sentences:
        assert sentence in page.replace("\u00a0", " ")
    assert "fake, continuous, 1 worker<" in page
    assert "None" not in page and "nan" not in page.split("Configuration")[0].lower().split()


@pytest.mark.parametrize("has_texts", [True, False])
def test_shared_report_names_no_folder_and_no_host(sad, tmp_path, has_texts):
    spec = {
        "engine": {"server": {"url": "http://gpu-7:8000/v1"}, "backend": "async", "mode": "continuous"},
        "prompts": {"source": {"path": "/srv/alice/rows"}},
        "workers": "auto",
    }
    error = {"error_kind": "prompt_error", "error_message": "Cannot read /srv/alice/media/1.png"}
    sad.given("run", "completed", {**OK, "text": "an answer", "rendered": "/srv/asked", "score": 0.0}, error)
    change = "update raw.runs set model = '/srv/alice/llama', host_name = 'gpu-7', spec_json = ?, job = ?"
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "gpu-[7-8]"}
    with connect(sad.settings.database_path, 10) as connection:
        connection.execute(change, [json.dumps(spec), job])
    for folder in (None, tmp_path):
        written = make_report(sad.settings, "run", folder=folder, has_texts=has_texts)
        page = written.html.read_text(encoding="utf-8") + written.markdown.read_text(encoding="utf-8")
        assert "alice" not in page and "gpu-" not in page and "llama" in page and "42" in page
        assert "async, continuous, workers: auto" in page
        assert [text in page for text in ("an answer", "/srv/asked", "1.png", "…/v1")] == [has_texts] * 4
        assert written.html.stat().st_size < 100_000 or folder


def test_paths_with_one_ending_stay_apart():
    document = Document("/a/b/hf and /a/c/hf, 1/2/3", "of /x/y z/", "completed", [], [], [])
    assert hide_places(document).title == "b/hf and c/hf, 1/2/3"
    assert hide_places(document).subtitle == "of y z/"


def test_hostile_text_is_text(sad, tmp_path):
    answer = {**OK, "text": HOSTILE, "rendered": HOSTILE, "target": HOSTILE, "score": 0.0}
    error = {"error_kind": HOSTILE, "error_message": HOSTILE, "rendered": HOSTILE}
    sad.given("run", "failed", answer, error, message=HOSTILE)
    with connect(sad.settings.database_path, 10) as connection:
        for table in ("scorers", "scores"):
            connection.execute(f"update {table} set scorer = ?", [HOSTILE])
        event = "insert into engine_events values ('run', 'w', 1, 0, 'failed', 1.5, null, ?, '{}')"
        connection.execute(event, [HOSTILE])
    written = make_report(sad.settings, "run", folder=tmp_path)
    charts = read_charts(written.html)
    found = [row["what"] for chart in charts for rows in chart for row in rows if "what" in row]
    assert found and set(found) == {" ".join(HOSTILE.split())[:300]}, "no element of their data ends"
    seen = Seen()
    seen.feed(written.html.read_text(encoding="utf-8"))
    assert seen.texts["pre"].count(SHOWN) == 5
    assert "img" not in seen.attributes
    assert [names for names in seen.attributes["script"] if "src" in names] == []
    assert len(seen.attributes["script"]) == len(charts) + 3
    assert not [name for found in seen.attributes.values() for names in found for name in names if name[:2] == "on"]
    text = written.markdown.read_text(encoding="utf-8")
    assert text.count(f"````text\n{SHOWN}\n````") == 5
    outside = re.sub(r"`+ .*? `+", "", text.replace(SHOWN, ""))
    for piece in (
        r"\n# Heading",
        r"(?<!\\)<script",
        r"(?<!\\)\[link",
        r"(?<!\\)\*\*bold",
        r"(?<!\\)<img",
        r"(?<!\\)\| b",
    ):
        assert not re.search(piece, outside), piece


def test_report_names_a_context_that_was_shortened(sad, tmp_path):
    sad.given("run", "completed", dict(OK))
    change = '{"max_model_len": {"from": 32768, "to": 19968}}'
    with connect(sad.settings.database_path, 10) as connection:
        for event, at_s, details in (("failed", 1.0, "{}"), ("reduced", 1.1, change), ("opened", 2.0, "{}")):
            connection.execute(
                "insert into engine_events values ('run', 'worker-0', 1, 0, ?, ?, null, null, ?)",
                [event, at_s, details],
            )
    page = html.unescape(text_of(make_report(sad.settings, "run", folder=tmp_path).html))
    assert "The context of worker-0 has 19,968 tokens instead of 32,768" in page


def test_long_texts_are_cut_and_say_so(sad, tmp_path):
    sad.given("run", "completed", {**OK, "text": "long " * 100_000, "score": 0.0, "target": "y"})
    written = make_report(sad.settings, "run", folder=tmp_path)
    assert "truncated: first 1,500 of 500,000 characters" in written.html.read_text(encoding="utf-8")
    assert "truncated: first 1,500 of 500,000 characters" in written.markdown.read_text(encoding="utf-8")
    assert written.markdown.stat().st_size < 50_000


def test_a_page_of_many_requests_is_no_larger(settings, sad, tmp_path):
    sad.given("run", "completed", dict(OK))
    few = make_report(settings, "run", folder=tmp_path).html.stat().st_size
    with connect(settings.database_path, 10) as connection:
        connection.execute(
            "insert into requests (run_id, request_id, prompt_id, occurrence, repeat_index, sampling_json) "
            "select 'run', 'x' || i, 'p0', 0, i, '{}' from range(1, 20001) as _(i)"
        )
        connection.execute(
            "insert into completions (run_id, request_id, worker, engine_generation, window_requests, arrived_at_s, "
            "first_token_at_s, last_token_at_s, finished_at_s, output_tokens, text) "
            "select 'run', 'x' || i, 'w', 0, 8, i / 10, i / 10 + 1, i / 10 + 2 + sin(i), i / 10 + 2 + sin(i), 7, 'y' "
            "from range(1, 20001) as _(i)"
        )
    many = make_report(settings, "run", folder=tmp_path).html.stat().st_size
    assert many < few + 50_000
    assert many < 3_000_000


def test_report_command_prints_the_path(weeks, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(weeks.data_dir))
    assert run("report", [NIGHT, "--baseline", NIGHT_BEFORE, "--out", str(tmp_path / "new" / "folder")]) == 0
    out = capsys.readouterr().out
    assert str(tmp_path / "new" / "folder" / "report.html") in out
    assert (tmp_path / "new" / "folder" / "report.md").exists()
    assert run("report", [NIGHT]) == 0
    assert (weeks.run_dir(NIGHT) / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "fragment"),
    [
        (["no-such-run"], 2, "Run 'no-such-run' is not in"),
        ([NIGHT, "--baseline", "no-such"], 2, "no-such"),
        ([NIGHT, "--baseline", NIGHT], 2, "itself"),
        ([NIGHT, "--out", "/proc/none"], 6, "--out"),
    ],
)
def test_report_command_rejects_bad_input(weeks, monkeypatch, capsys, arguments, code, fragment):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(weeks.data_dir))
    assert run("report", arguments) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and fragment in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "",
        "a --history b",
        "a --benchmark b",
        "a --leaderboard",
        "--benchmark b --baseline a",
        "--leaderboard --baseline a",
    ],
)
def test_report_command_takes_one_subject_and_a_baseline_only_of_runs_and_histories(words):
    with pytest.raises(SystemExit) as ended:
        run("report", words.split())
    assert ended.value.code == 2


def test_an_unfinished_run_has_no_report(sad, tmp_path):
    sad.given("run", "running", dict(OK))
    sad.given("done", "completed", dict(OK))
    with pytest.raises(SpecError, match="has not finished"):
        make_report(sad.settings, "run", folder=tmp_path)
    with pytest.raises(SpecError, match="has not finished"):
        make_report(sad.settings, "done", "run", tmp_path)
    assert list(tmp_path.glob("report*")) == []


def test_without_a_database_nothing_is_made(settings):
    with pytest.raises(StoreError, match="Database not found"):
        make_report(settings, "run")
    assert not settings.database_path.exists()
