"""The report of a benchmark, and the load in the report of a run."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import row_kit
from row_kit import BENCHMARK, RATES, NightOf, given_nights, given_sweep, plan_of, text_of
from run_kit import settings_in

from assayline.benchmark.campaign import write_campaign
from assayline.benchmark.profile import Probe
from assayline.flows.cli import run
from assayline.report.charts import draw_frontier
from assayline.report.make import Written, make_report
from assayline.report.run.speed import judge_generator
from assayline.report.search import read_probes, say_search
from assayline.report.sweep import read_benchmark_rows
from assayline.settings import Settings
from assayline.store.database import connect
from assayline.words import show_rate, show_seconds

pytestmark = pytest.mark.slow

MEDIANS = (
    "select median(value) from run_metric join run_conditions using (run_id) "
    "where metric = 'output_tokens_per_s' group by config_id"
)
OK = {"arrived_at_s": 1.0, "first_token_at_s": 1.5, "last_token_at_s": 2.0, "finished_at_s": 2.0, "output_tokens": 5}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a sweep and its report, for tests that only read them."""

    def make_sweep(**sweep: Any) -> tuple[Settings, Written]:
        folder = tmp_path_factory.mktemp("sweep")
        settings = settings_in(folder)
        given_sweep(settings, **sweep)
        return settings, make_report(settings, BENCHMARK, folder=folder, kind="benchmark")

    return make_sweep


@pytest.fixture(scope="module")
def sweep(make: Any) -> tuple[Settings, Written]:
    """A whole one."""
    made: tuple[Settings, Written] = make()
    return made


@pytest.fixture(scope="module")
def plain(make: Any) -> Written:
    """Without objectives, and without a point beyond what the engine can do."""
    written: Written = make(rates=(4.0, 6.0), slos=())[1]
    return written


@pytest.fixture(scope="module")
def odd(make: Any) -> Written:
    """With points that were late, saturated and failed."""
    written: Written = make(rates=(4.0, 6.0, 8.0, 20.0), late_at=6.0, failed=["8/s"])[1]
    return written


def query(settings: Settings, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connect(settings.database_path, 10) as connection:
        return connection.execute(sql, list(values)).fetchall()


def read_charts(page: Path) -> list[list[dict[str, Any]]]:
    """By chart, the rows of all its layers."""
    return [[row for rows in layers for row in rows] for layers in row_kit.read_charts(page)]


def texts(page: Path) -> str:
    return html.unescape(text_of(page))


def headings(page: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", text_of(page))


def test_points_are_drawn_and_listed_as_the_model_has_them(sweep):
    settings, written = sweep
    assert headings(written.html) == ["Latency against throughput", "Goodput", "Points", "Runs"]
    points = query(settings, "select requests_per_s, ttft_p50_s, ttft_p99_s from load_point order by requests_per_s")
    assert len(points) == len(RATES) + 2
    latency, *_ = read_charts(written.html)
    for column, line in ((1, "median"), (2, "99th percentile")):
        drawn = sorted((row["x"], row["y"]) for row in latency if row.get("line") == line and "order" in row)
        assert set(drawn) == {(point[0], point[column]) for point in points}, "in seconds, as one point takes seconds"
    labels = {row["label"] for row in latency if "label" in row}
    assert labels == {"one at a time", "all at once", *(f"{rate:g}/s" for rate in RATES)}
    page = texts(written.html)
    for rate, median, _ in points:
        assert f"{rate:.3g}" in page and show_seconds(median) in page


def test_the_knee_is_marked_and_said(sweep):
    settings, written = sweep
    [(at,)] = query(settings, "select requests_per_s from load_point where is_knee")
    assert at < 10.0, "before the queue grows"
    latency, *_ = read_charts(written.html)
    assert {row["x"] for row in latency if row.get("name") == "knee"} == {at}
    assert f"The knee is at {show_rate(at, 'requests')}" in written.text


def test_sweep_has_no_knee_when_no_load_between_the_ends_is_trusted(settings, tmp_path):
    given_sweep(settings, rates=(6.0,), late_at=6.0)
    written = make_report(settings, BENCHMARK, folder=tmp_path, kind="benchmark")
    assert query(settings, "select count(*) from load_point where is_knee") != [(0,)], "one of the two ends"
    assert "no load between one at a time and all at once is valid (6/s: its client sent late)." in written.text
    assert "The knee is at" not in written.text and "TTFT at the knee" not in written.text
    assert not any(row.get("name") == "knee" for chart in read_charts(written.html) for row in chart)


def test_goodput_is_drawn_over_the_offered_rate_for_each_objective(sweep):
    settings, written = sweep
    *_, goodput, shares = read_charts(written.html)
    for slo in ("interactive", "patient"):
        wanted = query(
            settings,
            "select requests_per_s, rate.value, share.value from loads join metric_value as rate using (run_id) "
            "join metric_value as share using (run_id, detail) where rate.metric = 'good_requests_per_s' "
            "and share.metric = 'good_share' and detail = ? and requests_per_s is not null",
            slo,
        )
        line = f"good for {slo}"
        assert {(row["x"], row["y"]) for row in goodput if row.get("line") == line} == {row[:2] for row in wanted}
        assert {(row["x"], row["y"]) for row in shares if row.get("line") == line} == {row[::2] for row in wanted}
    assert {"x": max(RATES), "y": max(RATES)} in goodput, "the diagonal: all that is offered"
    assert "For interactive, at least 95% are good up to" in written.text
    assert "interactive: TTFT within 200\u00a0ms; patient: E2E within 2\u00a0s" in written.text


def test_search_names_the_highest_rate_that_holds_and_the_lowest_that_does_not(sweep):
    settings, _ = sweep
    with connect(settings.database_path, 10) as connection:
        probes = read_probes(connection, BENCHMARK, "interactive")
    good = query(
        settings,
        "select value from metric_value join loads using (run_id) where metric = 'good_requests' "
        "and detail = 'interactive' and requests_per_s is not null order by requests_per_s",
    )
    assert [(one.rate_per_s, one.good) for one in probes] == list(zip(RATES, (found for (found,) in good), strict=True))
    said = say_search("interactive", probes).replace("\u00a0", " ")
    assert said.startswith(
        "interactive holds up to 9.5 requests/s (100% of 200 good, 95%: 98.1 to 100%), and not at 12"
    )
    assert "saturated). It holds if 95% of the requests are good." in said
    assert "is not shown to hold at any rate, and not at 12 requests/s" in say_search("x", probes[-1:]).replace(
        "\u00a0", " "
    )
    late = [Probe(14.9, 160, 160, False), Probe(15.4, 160, 160, False, is_late=True)]
    assert "; 15.4 requests/s does not count, as its client sent or read late. " in say_search("x", late).replace(
        "\u00a0", " "
    )


def test_without_objectives_it_says_how_to_have_them(plain):
    assert "slos: [{name: interactive, ttft_s: 0.5, tpot_s: 0.05}]" in texts(plain.html)
    assert "Share of good requests" not in texts(plain.html)
    assert {row.get("line") for row in read_charts(plain.html)[-1]} >= {"answered"}


def test_points_that_cannot_be_believed_are_ringed_and_named(odd):
    text = odd.text.replace("\\", "")
    assert "The load generator fell behind at 6/s (99% within 500\u00a0ms)" in text
    assert "The engine was saturated at 20/s" in text
    assert "requests were sent late at 1 point" in text and "the engine was saturated at 1 point" in text
    marked = {row["label"] for row in read_charts(odd.html)[0] if row.get("is_marked")}
    assert marked == {"6/s", "20/s"}


def test_a_sweep_that_trusts_all_its_points_warns_of_none(plain):
    assert "fell behind" not in plain.text and "saturated at" not in plain.text and "Warning" not in plain.text
    assert not any(row.get("is_marked") for row in read_charts(plain.html)[0])


def test_a_point_that_failed_is_named_and_not_drawn(odd):
    page = texts(odd.html)
    assert "sweep 8/s is failed: the engine died" in page and ">unfinished<" in page
    assert "8/s" not in {row.get("label") for row in read_charts(odd.html)[0]}


def given_windows(settings: Settings, seconds: dict[int, list[float]]) -> None:
    """Repeats of a benchmark of windows: seconds per request of each."""
    nights = [
        NightOf(
            name=f"sums engine.max_concurrency={window}",
            model_id=f"window {window}",
            request_s=request_s,
            benchmark_id="b",
        )
        for window, repeats in seconds.items()
        for request_s in repeats
    ]
    given_nights(settings, nights)
    limits = {"gate": {"max_slowdown": {"e2e_p95_s": 0.1, "output_tokens_per_s": 0.05}}}
    with connect(settings.database_path, 10) as connection:
        connection.execute("update runs set spec_json = json_merge_patch(spec_json, ?)", [json.dumps(limits)])
        found = connection.execute("select config_id from runs group by all order by min(started_at)").fetchall()
    configs = [config_id for (config_id,) in found]
    variants = [f"engine.max_concurrency={size}" for size in seconds]
    write_campaign(plan_of("b", configs, variants), settings)


def test_comparison_report_shows_differences_and_draws_every_repeat(settings, tmp_path):
    given_windows(settings, {8: [1.0, 1.01, 1.02, 0.99, 0.98], 32: [0.5, 0.51, 0.52, 0.49, 0.48]})
    written = make_report(settings, "b", folder=tmp_path, kind="benchmark")
    assert headings(written.html) == ["Quality against cost", "Speed", "Repeats", "Runs"]
    page = texts(written.html).replace("\u00a0", " ")
    said = "max concurrency 32 has the most output tokens/s: 22 tokens/s, ×2 that of max concurrency 8, the next."
    assert f"{said} That is more than noise." in page
    assert "max concurrency 32 is cheaper, and not shown to be within 1 point" in page, "40 prompts are too few"
    assert "p at the limit" in page and ">×1.93 to ×2.07<" in page
    drawn = [row for row in read_charts(written.html)[1] if "value" in row]
    speeds = query(settings, "select list(output_tokens_per_s) from main.run")[0][0]
    assert sorted(row["value"] for row in drawn) == pytest.approx(
        sorted([*speeds, *(value for (value,) in query(settings, MEDIANS))])
    )


def test_comparison_report_of_equal_configurations_tells_nothing_apart(settings, tmp_path):
    given_windows(settings, {8: [1.0, 2.5, 0.3, 4.0, 0.9], 32: [0.2, 3.0, 1.1, 0.8, 2.4]})
    page = texts(make_report(settings, "b", folder=tmp_path, kind="benchmark").html).replace("\u00a0", " ")
    assert "the next. The next is not shown to differ by more than noise and the limit; more repeats may." in page
    assert "10.0% more than max concurrency 32" in page
    changes = [float(number) for number in re.findall(r"−([\d.]+)%", page)]
    assert changes and max(changes) < 100, "nothing falls by more than all"


def test_comparison_report_warns_about_too_few_repeats(sad, tmp_path):
    given_windows(sad.settings, {8: [1.0, 1.1], 32: [0.5]})
    page = texts(make_report(sad.settings, "b", folder=tmp_path, kind="benchmark").html)
    assert "the next. Whether that is more than noise is unknown: three repeats each allow a test." in page


def test_comparison_report_draws_a_curve_and_compares_with_the_best_when_a_number_is_varied(settings, tmp_path):
    speeds = {1: 1.0, 4: 0.5, 64: 0.03}
    given_windows(settings, {size: [s * (1 + i / 100) for i in range(5)] for size, s in speeds.items()})
    written = make_report(settings, "b", folder=tmp_path, kind="benchmark")
    page = texts(written.html).replace("\u00a0", " ")
    assert "×16.7 that of max concurrency 4, the next and ×33.3 that of max concurrency 1, the lowest. That is" in page
    curve = next(chart for chart in read_charts(written.html) if any(row.get("line") == "E2E p50" for row in chart))
    assert [row["label"] for row in curve if row.get("line") == "E2E p50"][:3] == ["1", "4", "64"]
    rows = query(settings, "select distinct metric, run_id from comparison where kind = 'benchmark'")
    of_speed = {run_id for metric, run_id in rows if metric == "output_tokens_per_s"}
    assert of_speed == {"night-004", "night-009"}, "each but the best"


SIZES = {"base": (32, 1.0), "fp8": (32, 0.7), "int4": (20, 0.4), "big": (0, 0.1)}
"""Right answers and seconds per request of each model."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Written]:
    """Models on two tasks, five times each; the last does not fit."""
    settings = settings_in(folder := tmp_path_factory.mktemp("suite"))
    nights = [
        NightOf(
            name=f"{task} model=models/{size}",
            model_id=f"{size} {task}",
            right=right,
            request_s=request_s * (1 + repeat / 100),
            benchmark_id="b",
            prompts=task,
            state="failed" if size == "big" else "completed",
        )
        for size, (right, request_s) in SIZES.items()
        for task in ("sums", "words")
        for repeat in range(5)
    ]
    killed = NightOf(name="sums model=models/fp8", model_id="fp8 sums", right=1, request_s=9.0, state="cancelled")
    given_nights(settings, [*nights, replace(killed, benchmark_id="b", prompts="sums")])
    with connect(settings.database_path, 10) as connection:
        connection.execute("""update runs set spec_json = '{"gate": {"max_accuracy_drop": 0.1}}'""")
        ids = "select name, any_value(config_id) from runs where benchmark_id = 'b' group by name"
        config_ids = dict(connection.execute(ids).fetchall())
    models = [f"models/{size}" for size in SIZES]
    tasks, variants = ["sums", "words"], [f"model={model}" for model in models]
    order = [config_ids[f"{task} {variant}"] for variant in variants for task in tasks]
    write_campaign(plan_of("b", order, variants, tasks, repeats=5), settings)
    return settings, make_report(settings, "b", folder=folder, kind="benchmark")


def test_frontier_has_the_cheapest_configuration_that_keeps_the_limit_first(suite):
    settings, _ = suite
    columns = "configuration, recovery, verdict, is_dominated, is_best, tasks, repeats, worst_recovery, obstacle"
    found = query(settings, f"select {columns} from frontier where benchmark_id = 'b'")
    assert found == [
        ("model=models/fp8", 1.0, "pass", False, True, 2, 5, 1.0, None),
        ("model=models/base", 1.0, "baseline", True, False, 2, 5, 1.0, None),
        ("model=models/int4", 0.625, "fail", False, False, 2, 5, 0.625, None),
        ("model=models/big", None, None, None, False, 2, 0, None, "the disk was full"),
    ]
    for size, cost, low, high in query(
        settings, "select split_part(configuration, '/', 2), cost, cost_low, cost_high from frontier"
    )[:3]:
        right, request_s = SIZES[size]
        measured_s = row_kit.NIGHT_PROMPTS * request_s  # one after another
        assert (low, cost, high) == tuple(pytest.approx(measured_s * more / right) for more in (1.0, 1.02, 1.04))
    ends = query(settings, "select recovery_low, recovery_high, difference_low, difference_high, prompts from frontier")
    assert ends[1][:4] == (None,) * 4 and ends[0][4] == 80
    for recovery_low, recovery_high, low, high, _ in (ends[0], ends[2]):
        assert (recovery_low < 1 < recovery_high) == (low < 0 < high) and recovery_low < recovery_high


@pytest.mark.parametrize("wanted", ["model=models/int4", "model=models/gone"])
@pytest.mark.parametrize("name", ["sums", "sums shots=5", "sums benchmark"])
def test_frontier_compares_with_the_baseline_of_the_plan_whatever_the_names_are(settings, name, wanted):
    models = ["models/base", "models/int4"]
    nights = [
        NightOf(name=f"{name} model={model}", model_id=model, right=right, benchmark_id="b")
        for model, right in zip(models, (32, 20), strict=True)
    ]
    given_nights(settings, nights)
    with connect(settings.database_path, 10) as connection:
        order = [row for (row,) in connection.execute("select config_id from runs order by model_id").fetchall()]
        plan = plan_of("b", order, [f"model={model}" for model in models], name=name, baseline=wanted)
        rows = read_benchmark_rows(connection, "b", plan)
    verdicts = {row["configuration"]: row["verdict"] for row in rows.frontier}
    assert {one.label for one in rows.measured} == {f"model={model}" for model in models}
    base = {"model=models/int4": "baseline"} if wanted == "model=models/int4" else {}
    assert {label: one for label, one in verdicts.items() if one == "baseline"} == base


def test_frontier_page_names_the_configuration_to_run_and_the_reason(suite):
    _, written = suite
    page = texts(written.html).replace("\u00a0", " ")
    assert "model fp8 takes 30% less time per correct answer than model base in every repeat; its accuracy is" in page
    assert "its accuracy is not lower by more than 10 points (95%: −5.5 to +5.5 points)." in page
    assert "model int4 is shown to be worse: recovery 62.5% (95%:" in page
    assert "model big: not measured; the table has the reason." in page and "Not measured: the disk was full" in page
    drawn = {row["name"]: row["is_grey"] for row in read_charts(written.html)[0] if "is_grey" in row}
    assert drawn == {"model fp8": False, "model base": True, "model int4": False}
    chart = json.loads(written.html.with_name("frontier.vl.json").read_text())
    assert chart["$schema"].endswith("vega-lite/v6.json") or "vega-lite" in chart["$schema"]
    assert "var(" not in json.dumps(chart), "it has colours of its own"


def test_the_command_writes_into_the_benchmarks_folder(sweep, monkeypatch, capsys):
    settings, _ = sweep
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("ASSAYLINE_DATABASE", str(settings.database_path))
    assert run("report", ["--benchmark", BENCHMARK]) == 0
    assert str(settings.data_dir / "benchmarks" / BENCHMARK / "report.html") in capsys.readouterr().out
    assert run("report", ["--benchmark", "none"]) == 2
    assert "Benchmark 'none' has no run" in capsys.readouterr().err


@pytest.mark.parametrize(("is_healthy", "said"), [(True, "are too low."), (False, "can be far too high.")])
def test_a_late_generator_is_said_to_move_latencies_as_the_client_does(is_healthy, said):
    found: Any = SimpleNamespace(value=lambda metric, statistic: 0.0 if metric == "kept_up" else 0.1)
    (warning,) = judge_generator(found, [{"is_healthy": is_healthy}])
    assert f"{said} Measured from the due time" in warning.text


def test_a_run_under_load_says_what_must_be_known_of_it(settings, tmp_path):
    run_ids = given_sweep(settings, rates=(6.0, 20.0), late_at=6.0)
    with connect(settings.database_path, 10) as connection:
        connection.execute("update loads set warmup_s = 2, cooldown_s = 1 where run_id = ?", [run_ids[3]])
        connection.execute(
            "insert into engine_events values (?, 'w', 1, 0, 'load_ended', 9, null, 'Sending has ended: x.', '{}')",
            [run_ids[3]],
        )
    late = texts(make_report(settings, run_ids[2], folder=tmp_path / "late").html)
    assert "Open loop: requests were sent at a constant rate, 6\u00a0requests/s" in late
    assert "The load generator fell behind" in late and "Measured from the due time" in late
    assert late.index("The client was overloaded: it sent requests late") < late.index("Open loop"), "in the headline"
    fast = make_report(settings, run_ids[3], folder=tmp_path / "fast")
    page = texts(fast.html)
    assert "Load" in headings(fast.html)
    assert "The engine was saturated" in page and "fell behind" not in page and "overloaded" not in page
    assert "Sending has ended: x." in page
    assert "Requests sent in the first 2\u00a0s and the last 1\u00a0s are stored" in page
    assert "interactive" in page and "Goodput" in page
    begins, ends = query(settings, "select begins_at_s, ends_at_s from load_stretch where run_id = ?", run_ids[3])[0]
    for chart in read_charts(fast.html)[-2:]:
        assert {row["at"] for row in chart if "measured" in str(row.get("what"))} == {begins, ends}
    closed = texts(make_report(settings, run_ids[0], folder=tmp_path / "closed").html)
    assert "Closed loop: 1 request in flight" in closed and "saturated" not in closed
    assert "in which every seat was taken" in closed and "of ramp-up and drain are left out" in closed


def test_a_run_without_a_load_has_no_such_section(sad, tmp_path):
    sad.given("run", "completed", dict(OK))
    assert "Load" not in headings(make_report(sad.settings, "run", folder=tmp_path).html)


@pytest.mark.parametrize(("rows", "named"), [(6, 6), (7, 2)])
def test_frontier_chart_names_the_baseline_and_the_best_among_many(rows, named):
    points = [
        {
            **dict.fromkeys(("cost_low", "cost_high", "recovery_low", "recovery_high")),
            **{"name": str(place), "cost": place, "recovery": 1.0, "is_dominated": place > 0},
            "verdict": "baseline" if place == 3 else "pass",
        }
        for place in range(rows)
    ]
    *_, names = draw_frontier(points, "s/answer")["layer"]
    assert len(names["data"]["values"]) == named
