"""compare_speed and compare_configs, what they read and which runs they take: speed over repeats."""

import json
from datetime import datetime, timedelta

import numpy as np
import pytest
import scipy
from row_kit import give_run_metric

from assayline.comparison.queries import compare_speed
from assayline.spec.criteria import GateSpec
from assayline.stats.repeats import compare_repeats
from assayline.stats.worse import find_level

pytestmark = pytest.mark.slow

HEADLINES = ["output_tokens_per_s", "tpot_p50_s", "e2e_p95_s"]
NIGHT = datetime(2026, 1, 1)
ALL = dict.fromkeys(HEADLINES, 0.01)
DEFAULTS = {str(metric): limit for metric, limit in GateSpec().max_slowdown.items()}


def rows_of(metric, values, *, is_candidate):
    better = not metric.endswith("_s") or "per_s" in metric
    known = {"metric": metric, "unit": "s", "higher_is_better": better, "is_candidate": is_candidate}
    return [{**known, "value": float(value)} for value in values]


def compare(new, old, limits=None, nights=1):
    """Compare the values of two sides, by metric, that ran one after the other."""
    sides = ((metric, values, side is new) for side in (new, old) for metric, values in side.items())
    rows = [row for metric, values, is_new in sides for row in rows_of(metric, values, is_candidate=is_new)]
    return compare_repeats(rows, DEFAULTS if limits is None else limits, nights=nights)


def in_turn(new, old):
    """Rows of two sides that ran as B A A B …, as a benchmark does."""
    sides = [side for i in range(len(new)) for side in ((False, True) if i % 2 == 0 else (True, False))]
    left = {side: iter(rows_of("x_s", values, is_candidate=side)) for side, values in ((True, new), (False, old))}
    return [next(left[side]) for side in sides]


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 8), (12, 11)])
def test_the_test_is_scipys_of_logarithms(n, m):
    dice = np.random.default_rng(10 * n + m)
    new, old = np.exp(dice.normal(0.02, 0.05, n)), np.exp(dice.normal(0, 0.05, m))
    row = compare({"x": new}, {"x": old}, {"x": 0.01})["x"]
    tested = scipy.stats.ttest_ind(np.log(new), np.log(old))
    moved = np.log(new).mean() - np.log(old).mean()
    assert row.difference == pytest.approx(np.expm1(moved))
    assert row.p_value == pytest.approx(tested.pvalue)
    assert (row.low, row.high) == pytest.approx(tuple(np.expm1(tested.confidence_interval())))
    shifted = np.log(new) - (np.log(1.01) if moved > 0 else np.log(0.99))
    is_beyond = (shifted.mean() > np.log(old).mean()) == (moved > 0)
    assert row.p_beyond == pytest.approx(scipy.stats.ttest_ind(shifted, np.log(old)).pvalue if is_beyond else 1)
    assert row.counts == (n, m)
    assert (row.value, row.baseline_value) == pytest.approx((np.median(new), np.median(old)))


@pytest.mark.parametrize("repeats", [4, 5, 8])
def test_compare_repeats_compares_neighbors_of_five_repeats_in_turn(repeats):
    """A drift of 30% hides 8% unless neighbors are compared."""
    dice = np.random.default_rng(repeats)
    drift = np.linspace(0, 0.3, 2 * repeats) + dice.normal(0, 0.005, 2 * repeats)
    place = np.arange(repeats) * 2
    old, new = (np.exp(drift[place + (place // 2 % 2 == turn)]) for turn in (1, 0))
    row = compare_repeats(in_turn(new * 1.08, old), {"x_s": 0.02})["x_s"]
    test = scipy.stats.ttest_rel if repeats >= 5 else scipy.stats.ttest_ind
    assert row.p_value == pytest.approx(test(np.log(new * 1.08), np.log(old)).pvalue)
    assert row.name_change() == ("worse" if repeats >= 5 else "unclear")
    if repeats >= 5:
        one_after_the_other = sorted(in_turn(new * 1.08, old), key=lambda one: one["is_candidate"])
        assert compare_repeats(one_after_the_other, {"x_s": 0.02})["x_s"].name_change() == "unclear"


def test_fewer_than_three_are_not_judged():
    new, old = {"x": [11, 12]}, {"x": [1, 2, 3, 4, 5, 6]}
    row = compare(new, old)["x"]
    assert (row.p_value, row.low, row.name_change()) == (None, None, "too_few")
    assert row.difference == pytest.approx(np.sqrt(132) / 720 ** (1 / 6) - 1)
    assert compare(new, {}) == {}


@pytest.mark.parametrize(
    ("new", "old", "difference", "p_value", "verdict"),
    [
        ([0.1] * 5, [0.1] * 5, 0, 1, "same"),
        ([0] * 5, [0] * 5, 0, 1, "same"),
        ([0] * 5, [0.1] * 5, -0.999, 0, "better"),
        ([0.1] * 5, [0] * 5, None, None, "unclear"),
    ],
)
def test_compare_repeats_judges_equal_values_and_zeros(new, old, difference, p_value, verdict):
    row = compare({"x_s": new}, {"x_s": old})["x_s"]
    assert (row.difference, row.p_value, row.name_change()) == (
        difference and pytest.approx(difference), p_value, verdict,
    )  # fmt: skip


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "worse"), (1.1, "better"), (0.995, "same"), (1.0, "same")])
def test_verdicts_of_throughput_and_latency_look_opposite_ways(factor, verdict):
    base = np.array([100.0, 100.1, 100.2, 100.3, 100.4])
    new = {"output_tokens_per_s": base * factor, "e2e_p95_s": base / factor}
    found = compare(new, dict.fromkeys(new, base), dict.fromkeys(new, 0.02))
    assert {row.name_change() for row in found.values()} == {verdict}
    assert found["e2e_p95_s"].difference == pytest.approx(1 / factor - 1) and found["e2e_p95_s"].limit == 0.02


def test_compare_repeats_is_unclear_when_a_large_shift_may_be_chance():
    row = compare({"x": [80, 120, 90, 110, 100]}, {"x": [85, 125, 115, 130, 105]})["x"]
    assert abs(row.difference) > row.limit and row.name_change() == "unclear"


def test_the_family_is_adjusted_as_holm_says():
    from statsmodels.stats.multitest import multipletests

    dice = np.random.default_rng(5)
    new = {name: dice.normal(100 + 2 * i, 2, 6) for i, name in enumerate([*HEADLINES, "other"])}
    old = {name: dice.normal(100, 2, 6) for name in new}
    found, alone = compare(new, old, ALL), compare(new, old, {})
    expected = multipletests([alone[name].p_value for name in HEADLINES], method="holm")[1]
    assert [found[name].p_value for name in HEADLINES] == pytest.approx(list(expected))
    assert found["other"] == alone["other"]


def given_night(store, run_id, night, config="c", *, benchmark=None, events=("opened", "warmed_up"), **run):
    store.given(
        "runs",
        {
            "run_id": run_id,
            "config_id": config,
            "benchmark_id": benchmark,
            "started_at": NIGHT + timedelta(days=night),
            **run,
        },
    )
    device = '{"device_name": "X1", "vllm_version": "1.0"}'
    store.given("engine_events", *({"run_id": run_id, "event": event, "details_json": device} for event in events))


def chosen(store, candidate, baseline):
    store.measure()
    rows = store.connection.execute("from choose_repeats(?, ?)", [candidate, baseline]).fetchall()
    return {side: [run for found, run, _ in rows if found == side] for side in ("candidate", "baseline")}


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        ({}, None),
        ({"state": "failed"}, "it is failed, not completed"),
        ({"attempt": 2}, "it was resumed"),
        ({"events": ["opened", "failed", "opened", "warmed_up"]}, "an engine failed"),
        ({"events": ["opened", "warmed_up", "failed", "idle"]}, "w answered no request"),
        ({"events": ["opened"]}, "its engine was not warmed up"),
        ({"events": []}, "its engine was not warmed up"),
        ({"config": None}, "it has no config_id"),
    ],
)
def test_run_conditions_names_the_obstacle(store, change, obstacle):
    given_night(store, "run", 0, **change)
    row = store.row("run_conditions", "obstacle", "environment")
    assert row["obstacle"] == obstacle
    if not change:
        assert row["environment"] == "host; assayline 0; X1, vLLM 1.0"


def test_run_conditions_counts_a_resumed_run_when_no_earlier_attempt_opened_an_engine(store):
    given_night(store, "run", 0, attempt=2, events=[])
    for event in ("opened", "warmed_up"):
        store.given("engine_events", {"run_id": "run", "event": event, "attempt": 2})
    assert store.row("run_conditions", "obstacle")["obstacle"] is None


@pytest.mark.parametrize(
    ("later", "obstacle"),
    [
        ({"device_name": "X1", "vllm_version": "1.0"}, "it was resumed"),
        ({"device_name": "X1", "vllm_version": "1.1"}, "it was resumed on another device or version: X1, vLLM 1.1"),
        ({"device_name": "Y2", "vllm_version": "1.0"}, "it was resumed on another device or version: Y2, vLLM 1.0"),
        (
            {
                "device_name": "X1",
                "vllm_version": "1.0",
                "model_runner": "v2",
                "has_flashinfer": True,
                "is_compiled": True,
                "max_model_len": 19968,
            },
            "it was resumed on another device or version: X1, vLLM 1.0, runner v2 with FlashInfer with torch.compile, "
            "context 19968 tokens",
        ),
        (
            {"device_name": "X1", "vllm_version": "1.0", "model_runner": "v1", "has_flashinfer": False},
            "it was resumed on another device or version: X1, vLLM 1.0, runner v1",
        ),
    ],
)
def test_run_conditions_names_another_device_or_version_of_a_later_attempt(store, later, obstacle):
    given_night(store, "run", 0, attempt=2)
    store.given("engine_events", {"run_id": "run", "event": "opened", "attempt": 2, "details_json": json.dumps(later)})
    assert store.row("run_conditions", "obstacle")["obstacle"] == obstacle


def test_choose_repeats_compares_runs_after_the_baseline_with_those_before(store):
    for night in range(30):
        given_night(store, f"n{night:02}", night)
    found = chosen(store, "n17", "n12")
    assert found["baseline"] == [f"n{night:02}" for night in range(3, 13)]
    assert found["candidate"] == ["n13", "n14", "n15", "n16", "n17"]
    assert {side: len(runs) for side, runs in chosen(store, "n29", "n12").items()} == {"candidate": 10, "baseline": 10}
    earlier = chosen(store, "n12", "n17")  # looking back: the older run is the candidate
    assert (earlier["candidate"], earlier["baseline"]) == (found["baseline"], found["candidate"])


@pytest.mark.parametrize(("is_longest_first", "judged_from"), [(False, 9), (True, 10)])
def test_choose_repeats_judges_nights_after_the_first_is_pinned(store, is_longest_first, judged_from):
    """The first night knows no lengths. Its five repeats are those right after it, and none counts on both sides."""
    for night in range(14):
        given_night(store, f"n{night:02}", night)
        lengths = 9 if is_longest_first and night else None
        store.given("requests", {"run_id": f"n{night:02}", "request_id": "r", "expected_output_tokens": lengths})
    first = int(is_longest_first)
    for night in range(1, 14):
        found = chosen(store, f"n{night:02}", "n00")
        assert not set(found["candidate"]) & set(found["baseline"])
        assert found["candidate"][-1] == f"n{night:02}"
        assert all(len(runs) >= 5 for runs in found.values()) == (night >= judged_from), night
    assert found["baseline"] == [f"n{night:02}" for night in range(first, first + 5)]
    assert found["candidate"] == [f"n{night:02}" for night in range(first + 5, 14)]


def test_choose_repeats_counts_nights_in_pods_with_other_host_names(store):
    for night in range(12):
        given_night(store, f"n{night:02}", night, host_name=f"pod-{night}", machine="CPU, 8 cores")
    assert [len(runs) for runs in chosen(store, "n11", "n05").values()] == [6, 6]
    given_night(store, "moved", 12, machine="another CPU, 8 cores")
    assert chosen(store, "moved", "n05")["candidate"] == ["moved"]


def test_choose_repeats_excludes_another_environment_or_an_obstacle(store):
    given_night(store, "old", 0, machine="old host")
    given_night(store, "broken", 1, state="failed")
    given_night(store, "new", 2)
    given_night(store, "other", 1, "d")
    assert chosen(store, "new", "old") == {"candidate": ["new"], "baseline": ["old"]}
    assert chosen(store, "new", "other") == {"candidate": ["new"], "baseline": ["other"]}


def test_choose_repeats_excludes_another_prompt_set_under_the_same_spec(store):
    for night, prompts in enumerate(["ab", "ba", "ac", "ab"]):
        given_night(store, f"n{night}", night)
        store.given("prompts", *({"run_id": f"n{night}", "prompt_id": prompt} for prompt in prompts))
    given_night(store, "new", 5, "d")
    assert chosen(store, "new", "n3")["baseline"] == ["n0", "n1", "n3"]
    assert chosen(store, "new", "n2")["baseline"] == ["n2"]


def test_choose_repeats_leaves_out_first_runs_once_others_are_sent_longest_first(store):
    for night in range(4):
        given_night(store, f"n{night}", night)
        request = {"run_id": f"n{night}", "request_id": "r", "expected_output_tokens": 9 if night > 1 else None}
        store.given("requests", request, {**request, "request_id": "s", "expected_output_tokens": None})
    given_night(store, "new", 5, "d")
    assert chosen(store, "n1", "n0") == {"candidate": ["n1"], "baseline": ["n0"]}, "there are no others yet"
    assert chosen(store, "new", "n1")["baseline"] == ["n2", "n3"]
    assert chosen(store, "new", "n3")["baseline"] == ["n2", "n3"]
    assert store.row("run_conditions", "environment", run_id="n3")["environment"].endswith("; longest answers first")


def test_repeats_of_a_benchmark_are_the_newest_ten_of_the_same_benchmark(store):
    for night in range(12):
        given_night(store, f"b{night:02}", night, benchmark="b1")
        given_night(store, f"x{night:02}", night, "d", benchmark="b2")
    given_night(store, "loose", 3)
    found = chosen(store, "x00", "b04")
    assert found["baseline"] == [f"b{night:02}" for night in range(2, 12)]
    assert found["candidate"] == [f"x{night:02}" for night in range(2, 12)]
    assert chosen(store, "loose", "b00")["candidate"] == ["loose"]


def test_a_run_is_not_compared_with_itself(store):
    given_night(store, "run", 0)
    assert chosen(store, "run", "run") == {"candidate": [], "baseline": []}


def test_configurations_are_compared_over_their_repeats(store):
    for i in range(5):
        given_night(store, f"a{i:02}", i, "fast")
        given_night(store, f"b{i:02}", i, "slow")
    given_night(store, "a99", -1, "fast", machine="another")
    given_night(store, "b99", 9, "slow", state="failed")
    values = {f"{side}{i:02}": first + i for side, first in (("a", 11), ("b", 1)) for i in range(5)}
    values |= {"a99": values["a00"], "b99": values["b00"]}
    given = ({"run_id": run, "metric": "x", "value": float(value)} for run, value in values.items())
    give_run_metric(store.connection, *given)
    (row,) = store.read("from compare_configs('fast', 'slow')")
    assert (row["candidate_repeats"], row["baseline_repeats"], row["candidate_median"]) == (5, 5, 13)
    assert (row["baseline_lowest"], row["baseline_highest"], row["relative_shift"]) == (1, 5, pytest.approx(10 / 3))


def test_compare_speed_counts_the_spread_between_sessions(store):
    """Fast repeats of one day, and slow ones of two days after five others."""
    days = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.2]
    for i in range(20):
        day, config = min(6, i // 2) if i < 15 else 5, "slow" if i < 15 else "fast"
        given_night(store, f"a{i:02}", day, config)
    new, old = [f"a{i:02}" for i in range(15, 20)], [f"a{i:02}" for i in range(10, 15)]
    values = [days[min(6, i // 2) if i < 15 else 5] * (1 + i / 1000) for i in range(20)]
    given = ({"run_id": f"a{i:02}", "metric": "x", "value": value} for i, value in enumerate(values))
    give_run_metric(store.connection, *given)
    found, single = (compare_speed(store.connection, new, old, {"x": 0.1}, is_apart=one)["x"] for one in (True, False))
    by_day = [np.mean(np.log(values[2 * day : 2 * day + 2 if day < 6 else 15])) for day in range(7)]
    error = np.std(by_day, ddof=1) * np.sqrt(1 + 1 / 2)
    moved = np.mean(np.log(values[15:])) - np.mean(np.log(values[10:15]))
    beyond = 2 * scipy.stats.t.sf((abs(moved) + np.log(0.9)) / error, 6)
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(moved) / error, 6))
    assert single.p_value < found.p_value
    assert found.p_beyond == pytest.approx(max(single.p_beyond, min(1, beyond)))
    assert found.difference == single.difference == pytest.approx(np.expm1(moved))
    half = scipy.stats.t.ppf(0.975, 6) * error
    assert (found.low, found.high) == pytest.approx((np.expm1(moved - half), np.expm1(moved + half)))


def test_compare_repeats_counts_similar_nights_for_fewer():
    dice = np.random.default_rng(3)
    new, old = (level + dice.normal(0, 0.01, nights).cumsum() for level, nights in ((0.06, 8), (0, 10)))
    sides = [{"tpot_p50_s": np.exp(side)} for side in (new, old)]
    single, nightly = (compare(*sides, nights=nights)["tpot_p50_s"] for nights in (1, 60))
    splits = [(old, new[:split], new[split:]) for split in range(2, 7)]
    rests = min(([one - one.mean() for one in sides] for sides in splits), key=lambda rests: sum(x @ x for x in rests))
    power = sum(rest @ rest for rest in rests)
    found = sum(rest[1:] @ rest[:-1] for rest in rests) / power
    correlation = found + 3 * (1 + 3 * found) / 18
    moved = new.mean() - old.mean()
    error = np.sqrt(power / 13 * (1 + correlation) / (1 - correlation) * (1 / 8 + 1 / 10))
    assert 0.3 < nightly.correlation == pytest.approx(correlation)
    assert nightly.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(moved) / error, 13), rel=1e-9)
    assert nightly.difference == single.difference and single.correlation is None
    half = scipy.stats.t.ppf(0.975, 13) * error
    assert (nightly.low, nightly.high) == pytest.approx((np.expm1(moved - half), np.expm1(moved + half)))
    few = compare(*({"tpot_p50_s": one["tpot_p50_s"][:4]} for one in sides), nights=60)["tpot_p50_s"]
    assert (few.name_change(), few.p_value) == ("too_few", None)


@pytest.mark.parametrize(("nights", "verdict"), [(1, "worse"), (10, "worse"), (60, "unclear")])
def test_compare_repeats_needs_the_evidence_of_the_period_of_nights(nights, verdict):
    old = [100, 101, 99, 102, 98, 101, 99]
    new = [value + 4.2 for value in old]
    row = compare({"tpot_p50_s": new}, {"tpot_p50_s": old}, {"tpot_p50_s": 0.01}, nights)["tpot_p50_s"]
    assert row.name_change(find_level(nights)) == verdict
