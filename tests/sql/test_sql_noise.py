"""noise_run, noise and noise_prompt: how much equal runs differ, and where comparisons show it."""

from datetime import datetime, timedelta

import numpy as np
import pytest
from row_kit import give_run_metric
from scipy.stats import chi2, norm

from assayline.comparison import benchmarks
from assayline.report.run.comparison import read_flips
from assayline.stats.noise import find_floors

START = datetime(2026, 1, 1)


def given_runs(store, engines, benchmark="noise", day=0, config="config", prefix="r", **more):
    """One run per entry of `engines`: the number of its engine. Runs are named r00, r01, …"""
    first: dict[int, str] = {}
    for i, engine in enumerate(engines):
        run_id = f"{prefix}{i:02}"
        opener = first.setdefault(engine, run_id)
        run = {"run_id": run_id, "config_id": config, "benchmark_id": benchmark, **more}
        store.given("runs", {**run, "started_at": START + timedelta(days=day, minutes=i)})
        kept = "" if opener == run_id else f', "kept_from": "{opener}"'
        details = {"event": "opened", "details_json": f'{{"device_name": "one"{kept}}}'}
        store.given("engine_events", {"run_id": run_id, **details}, {"run_id": run_id, "event": "warmed_up"})
    return [f"{prefix}{i:02}" for i in range(len(engines))]


def read_noise(store, *values, engines):
    """The row of read_noise for runs with these values on these engines."""
    runs = given_runs(store, engines)
    give_run_metric(
        store.connection,
        *({"run_id": run, "metric": "x", "value": float(v)} for run, v in zip(runs, values, strict=True)),
    )
    return benchmarks.read_noise(store.connection, "true")[0]


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2, 2), (2, 2, 2, 1), (1, 2, 2), (3, 2, 1, 2), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("between", [0.0, 5.0])
def test_components_of_variance_are_those_of_numpy(store, sizes, between):
    dice = np.random.default_rng([*sizes, int(between)])
    groups = [100 + dice.normal(0, between) + dice.normal(0, 1, n) for n in sizes]
    engines = [i for i, n in enumerate(sizes) for _ in range(n)]
    row = read_noise(store, *np.concatenate(groups), engines=engines)
    everything, (a, n) = np.concatenate(groups), (len(sizes), sum(sizes))
    usual = (n - sum(size**2 for size in sizes) / n) / (a - 1)
    msb = sum(len(g) * (g.mean() - everything.mean()) ** 2 for g in groups) / (a - 1)
    assert (row["runs"], row["engines"], row["mean"]) == (n, a, pytest.approx(everything.mean()))
    if n == a:
        total = everything.var(ddof=1)
        assert (row["run_sd"], row["engine_sd"]) == (None, None)
    else:
        msw = sum(((g - g.mean()) ** 2).sum() for g in groups) / (n - a)
        total = msw + max(0, (msb - msw) / usual)
        assert row["run_sd"] == pytest.approx(np.sqrt(msw))
        assert row["engine_sd"] == pytest.approx(np.sqrt(max(0, (msb - msw) / usual)))
    assert row["total_sd"] == pytest.approx(np.sqrt(total))
    if n == a:
        assert row["noise_floor"] == pytest.approx(1.959964 * np.sqrt(2 * total * (a - 1) / chi2.ppf(0.05, a - 1)))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_noise_floors_are_too_low_in_at_most_5_percent_of_measurements(share):
    """Of five engines with two runs each, for any share of the engines in the variance."""
    dice = np.random.default_rng(1)
    runs = np.sqrt(share) * dice.normal(size=(4000, 5, 1)) + np.sqrt(1 - share) * dice.normal(size=(4000, 5, 2))
    squares = 2 * runs.mean(2).var(1, ddof=1), runs.var(2, ddof=1).mean(1)
    floor = find_floors(np.full(4000, 10), np.full(4000, 5), np.full(4000, 2.0), *squares)["noise_floor"]
    assert np.mean(2 * norm.sf(floor / np.sqrt(2)) > 0.05) <= 0.055


def test_equal_values_have_no_noise_at_all(store):
    row = read_noise(store, *[0.7] * 10, engines=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert (row["mean"], row["run_sd"], row["engine_sd"], row["noise_floor"]) == (0.7, 0, 0, 0)


def test_one_engine_shows_only_the_difference_of_its_runs(store):
    row = read_noise(store, 1, 2, 3, 4, 5, engines=[0] * 5)
    assert row["run_sd"] == pytest.approx(np.sqrt(2.5))
    assert (row["engine_sd"], row["total_sd"], row["noise_floor"]) == (None, None, None)


def test_noise_run_is_the_newest_benchmark_with_five_runs(store):
    given_runs(store, [0, 0, 1, 1, 2], "old", prefix="a")
    newer = given_runs(store, [0, 0, 1, 1, 2, 2], "new", day=1, prefix="b")
    given_runs(store, [0, 1, 2, 3], "small", day=2, prefix="c")
    given_runs(store, range(9), None, day=3, prefix="d")
    elsewhere = given_runs(store, range(5), "elsewhere", day=4, prefix="e", machine="other")
    rows = store.rows("noise_run", "run_id", "benchmark_id", "engine_run_id", run_id=None)
    found = {row["run_id"]: (row["benchmark_id"], row["engine_run_id"]) for row in rows}
    firsts = ["b00", "b00", "b02", "b02", "b04", "b04"]
    assert found == {
        **{run: ("new", first) for run, first in zip(newer, firsts, strict=True)},
        **{run: ("elsewhere", run) for run in elsewhere},
    }


@pytest.mark.parametrize(("state", "counts"), [("completed", True), ("failed", False)])
def test_noise_run_counts_runs_without_warm_up_and_not_failed_ones(store, state, counts):
    for run_id in given_runs(store, range(5), state=state):
        store.connection.execute("delete from raw.engine_events where run_id = ? and event = 'warmed_up'", [run_id])
    assert len(store.rows("noise_run", run_id=None)) == (5 if counts else 0)


def given_answers(store, run_id, texts, scores):
    """One answer per prompt p0, p1, …: a text, or None for an error; and its score."""
    key = {"run_id": run_id}
    prompts = [{**key, "prompt_id": f"p{i}"} for i in range(len(texts))]
    store.given("prompts", *prompts)
    store.given("requests", *({**one, "request_id": one["prompt_id"]} for one in prompts))
    for one, text in zip(prompts, texts, strict=True):
        kind = "timeout" if text is None else None
        store.given("completions", {**key, "request_id": one["prompt_id"], "text": text, "error_kind": kind})
    store.given("scorers", key)
    store.given("scores", *({**one, "value": float(v)} for one, v in zip(prompts, scores, strict=True)))


def test_noise_prompt_shares_are_of_pairs_of_runs(store):
    texts = [("a", "b"), ("a", "b"), ("a", "c"), ("a", None)]
    for run, found, score in zip(given_runs(store, [0, 0, 1, 1]), texts, (1, 1, 0, 0), strict=True):
        given_answers(store, run, found, (1, score))
    result = store.connection.execute("from noise_prompt(['r00', 'r01', 'r02', 'r03']) order by prompt_id")
    assert result.fetchall() == [("p0", 0, 4, 0.0, 0.0), ("p1", 0, 4, pytest.approx(5 / 6), pytest.approx(4 / 6))]
    assert store.connection.execute("from noise_prompt(null)").fetchall() == []


def test_read_noise_floors_takes_the_noise_of_either_configuration_in_its_environment(store):
    noise = given_runs(store, [0, 0, 1, 1, 2, 2])
    given_runs(store, [0], None, day=1, prefix="candidate")
    given_runs(store, [0], None, day=1, prefix="baseline", config="other")
    given_runs(store, [0], None, day=1, prefix="elsewhere", machine="other")
    values = {**dict(zip(noise, (9, 11, 9, 11, 9, 11), strict=True)), "candidate00": 10, "baseline00": 20}
    values["elsewhere00"] = 20
    give_run_metric(store.connection, *({"run_id": run, "metric": "x", "value": float(v)} for run, v in values.items()))
    (row,) = benchmarks.read_noise(store.connection, "true")
    for pair in (("candidate00", "baseline00"), ("baseline00", "candidate00")):
        assert benchmarks.read_noise_floors(store.connection, *pair) == {"x": row["noise_floor"]} != {}
    assert benchmarks.read_noise_floors(store.connection, "elsewhere00", "baseline00") == {}


def test_read_flips_marks_prompts_that_flip_between_equal_runs(store):
    for i, run in enumerate(given_runs(store, [0, 0, 1, 1, 2])):
        given_answers(store, run, ("a", "b"), (1, i % 2))
    for run, scores in (("candidate00", (0, 0)), ("baseline00", (1, 1))):
        given_runs(store, [0], None, day=1, prefix=run[:-2], config="config" if run[0] == "c" else "other")
        given_answers(store, run, ("x", "y"), scores)

    store.measure()

    def show(*flips):
        rows = read_flips(store.connection, *flips, "exact_match")
        return sorted((row["prompt_id"], row["flip_share"]) for row in rows)

    marked = [("p0", 0.0), ("p1", pytest.approx(0.6))]
    assert show("candidate00", "baseline00", "prompt") == marked
    assert show("baseline00", "candidate00", "prompt") == marked
    store.connection.execute("update raw.runs set benchmark_id = null")
    unmarked = [("p0", None), ("p1", None)]
    assert show("candidate00", "baseline00", "prompt") == unmarked
