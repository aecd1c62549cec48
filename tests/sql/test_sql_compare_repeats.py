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

pytestmark = pytest.mark.slow

HEADLINES = ["output_tokens_per_s", "tpot_p50_s", "e2e_p95_s"]
NIGHT = datetime(2026, 1, 1)
ALL = dict.fromkeys(HEADLINES, 0.01)
DEFAULTS = {str(metric): limit for metric, limit in GateSpec().max_slowdown.items()}


def given_values(store, **sides):
    """Values by metric for each side, in a table in place of run_metric; the ids of each side's runs."""
    give_run_metric(
        store.connection,
        *(
            {
                "run_id": f"{side}{i:02}", "metric": metric, "value": float(value), "unit": "s",
                "higher_is_better": not metric.endswith("_s") or "per_s" in metric,
            }
            for side, metrics in sides.items()
            for metric, values in metrics.items()
            for i, value in enumerate(values)
        ),
    )  # fmt: skip
    return [
        sorted({f"{side}{i:02}" for values in metrics.values() for i in range(len(values))})
        for side, metrics in sides.items()
    ]


def compare(store, new, old, limits=None, nights=1):
    rows = store.read("from line_up_repeats(?::varchar[], ?::varchar[])", new, old)
    return compare_repeats(rows, DEFAULTS if limits is None else limits, nights=nights)


def distance(one, other, axis):
    return np.abs(np.mean(one, axis=axis) - np.mean(other, axis=axis))


def exact_p(new, old):
    return scipy.stats.permutation_test(
        (new, old), distance, vectorized=True, alternative="greater", n_resamples=np.inf
    ).pvalue


@pytest.mark.parametrize(("n", "m"), [(5, 5), (5, 8), (7, 6)])
def test_the_test_is_scipys_over_all_assignments(store, n, m):
    dice = np.random.default_rng(10 * n + m)
    new = {name: dice.normal(100 + i, 2, n) for i, name in enumerate(HEADLINES)}
    old = {name: dice.normal(100, 2, m) for name in HEADLINES}
    old["e2e_p95_s"], new["e2e_p95_s"] = np.round(old["e2e_p95_s"]), np.round(new["e2e_p95_s"])  # ties
    found = compare(store, *given_values(store, a=new, b=old))
    for name in HEADLINES:
        row = found[name]
        assert row["p_value"] == pytest.approx(exact_p(new[name], old[name]), rel=1e-9)
        assert row["shift"] == pytest.approx(np.median(np.subtract.outer(new[name], old[name])))
        assert row["relative_shift"] == pytest.approx(row["shift"] / np.median(old[name]))
        assert (row["candidate_repeats"], row["baseline_repeats"]) == (n, m)
        assert (row["candidate_lowest"], row["baseline_highest"]) == (min(new[name]), max(old[name]))


@pytest.mark.parametrize(("n", "m", "rank"), [(5, 5, 3), (5, 6, 4), (6, 6, 6), (8, 8, 14), (10, 10, 24)])
def test_the_interval_ends_at_the_ranks_of_published_tables(store, n, m, rank):
    """The critical values of Mann and Whitney's U for 0.05, two-sided, plus 1."""
    dice = np.random.default_rng(n)
    new, old = dice.normal(0, 1, n), dice.normal(0, 1, m)
    row = compare(store, *given_values(store, a={"x": new}, b={"x": old}))["x"]
    ranked = np.sort(np.subtract.outer(new, old), axis=None)
    assert (row["shift_low"], row["shift_high"]) == (pytest.approx(ranked[rank - 1]), pytest.approx(ranked[-rank]))


def test_compare_repeats_ratio_is_by_logarithms_and_never_below_zero(store):
    """However far the values are spread, where the shift over the median is a fall by more than all."""
    new, old = [0.1, 0.2, 0.3, 1.0, 2.0], [0.2, 0.5, 0.6, 3.0, 9.0]
    row = compare(store, *given_values(store, a={"x": new}, b={"x": old}))["x"]
    logs = np.sort(np.subtract.outer(np.log(new), np.log(old)), axis=None)
    assert row["ratio"] == pytest.approx(np.exp(np.median(logs)))
    assert (row["ratio_low"], row["ratio_high"]) == (pytest.approx(np.exp(logs[2])), pytest.approx(np.exp(logs[-3])))
    assert row["ratio_low"] > 0 and row["shift_low"] / row["baseline_median"] < -1


def test_compare_repeats_ratio_is_null_when_a_value_is_not_above_zero(store):
    row = compare(store, *given_values(store, a={"x": [0, 1, 2, 3, 4]}, b={"x": [1, 2, 3, 4, 5]}))["x"]
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (None, None, None)


def test_fewer_than_five_are_not_judged(store):
    new, old = given_values(store, a={"x": [11, 12, 13, 14]}, b={"x": [1, 2, 3, 4, 5, 6]})
    row = compare(store, new, old)["x"]
    assert (row["p_value"], row["shift_low"], row["verdict"]) == (None, None, "too_few")
    assert row["shift"] == 9
    assert compare(store, new, []) == {}


def test_compare_repeats_finds_no_difference_between_equal_values(store):
    new, old = given_values(store, a={"x": [0.1] * 5, "zero": [0] * 5}, b={"x": [0.1] * 5, "zero": [0] * 5})
    found = compare(store, new, old)
    assert (found["x"]["p_value"], found["x"]["shift"], found["x"]["verdict"]) == (1, 0, "same")
    assert (found["zero"]["relative_shift"], found["zero"]["verdict"]) == (None, "same")


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "worse"), (1.1, "better"), (0.995, "same"), (1.0, "same")])
def test_verdicts_of_throughput_and_latency_look_opposite_ways(store, factor, verdict):
    base = np.array([100.0, 100.1, 100.2, 100.3, 100.4])
    new, old = given_values(
        store,
        a={"output_tokens_per_s": base * factor, "e2e_p95_s": base / factor},
        b={"output_tokens_per_s": base, "e2e_p95_s": base},
    )
    found = compare(store, new, old, {"output_tokens_per_s": 0.02, "e2e_p95_s": 0.02})
    assert {row["verdict"] for row in found.values()} == {verdict}
    for row in found.values():
        assert row["worsening_share"] == pytest.approx(1 - factor, abs=0.02)
        assert row["minimum_effect"] == 0.02


def test_compare_repeats_is_unclear_when_a_large_shift_may_be_chance(store):
    new, old = given_values(store, a={"x": [80, 120, 90, 110, 100]}, b={"x": [85, 125, 115, 130, 105]})
    row = compare(store, new, old)["x"]
    assert abs(row["relative_shift"]) > row["minimum_effect"] and row["verdict"] == "unclear"


def test_the_family_is_adjusted_as_holm_says(store):
    from statsmodels.stats.multitest import multipletests

    dice = np.random.default_rng(5)
    new = {name: dice.normal(100 + 2 * i, 2, 6) for i, name in enumerate([*HEADLINES, "other"])}
    old = {name: dice.normal(100, 2, 6) for name in new}
    found = compare(store, *given_values(store, a=new, b=old), ALL)
    p_values = [found[name]["p_value"] for name in HEADLINES]
    expected = multipletests(p_values, method="holm")[1]
    assert [found[name]["holm_p"] for name in HEADLINES] == pytest.approx(list(expected))
    assert found["other"]["holm_p"] is None


def test_of_more_than_ten_repeats_a_side_the_newest_ten_count(store):
    dice = np.random.default_rng(6)
    new, old = dice.normal(101, 2, 14), dice.normal(100, 2, 11)
    row = compare(store, *given_values(store, a={"x": new}, b={"x": old}))["x"]
    assert (row["candidate_repeats"], row["baseline_repeats"]) == (10, 10)
    assert (row["candidate_lowest"], row["baseline_lowest"]) == (min(new[4:]), min(old[1:]))


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
    given_values(store, a={"x": [11, 12, 13, 14, 15]}, b={"x": [1, 2, 3, 4, 5]})
    store.connection.execute(
        "insert into run_metric by name "
        "select * replace (run_id[1] || '99' as run_id) from run_metric where run_id like '_00'"
    )
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
    given_values(store, a={"x": values})
    found, single = (compare_speed(store.connection, new, old, {"x": 0.1}, is_apart=one)["x"] for one in (True, False))
    by_day = [np.mean(np.log(values[2 * day : 2 * day + 2 if day < 6 else 15])) for day in range(7)]
    error, moved = np.std(by_day, ddof=1) * np.sqrt(1 + 1 / 2), np.log(np.mean(values[15:]) / np.mean(values[10:15]))
    beyond = 2 * scipy.stats.t.sf((abs(moved) + np.log(0.9)) / error, 6)
    assert found["p_value"] == pytest.approx(2 * scipy.stats.t.sf(abs(moved) / error, 6))
    assert single["p_value"] < found["p_value"]
    assert found["beyond_p"] == pytest.approx(max(single["beyond_p"], min(1, beyond)))
    assert found["shift"] == single["shift"]
    half = np.median(values[10:15]) * scipy.stats.t.ppf(0.975, 6) * error
    assert found["shift_high"] - found["shift_low"] == pytest.approx(2 * half) and half > 0.2


def test_compare_repeats_counts_similar_nights_for_fewer(store):
    dice = np.random.default_rng(3)
    new, old = (level + dice.normal(size=nights).cumsum() for level, nights in ((106, 8), (100, 10)))
    sides = given_values(store, a={"tpot_p50_s": new}, b={"tpot_p50_s": old})
    single, nightly = (compare(store, *sides, nights=nights)["tpot_p50_s"] for nights in (1, 60))
    splits = [(old, new[:split], new[split:]) for split in range(2, 7)]
    rests = min(([one - one.mean() for one in sides] for sides in splits), key=lambda rests: sum(x @ x for x in rests))
    power = sum(rest @ rest for rest in rests)
    found = sum(rest[1:] @ rest[:-1] for rest in rests) / power
    correlation = found + 3 * (1 + 3 * found) / 18
    error = np.sqrt(power / 13 * (1 + correlation) / (1 - correlation) * (1 / 8 + 1 / 10))
    assert 0.3 < nightly["correlation"] == pytest.approx(correlation)
    assert nightly["p_value"] == pytest.approx(2 * scipy.stats.t.sf((new.mean() - old.mean()) / error, 13), rel=1e-9)
    assert nightly["shift"] == single["shift"] and single["correlation"] is None
    half = scipy.stats.t.ppf(0.975, 13) * error
    assert nightly["shift_low"] == pytest.approx(min(single["shift_low"], single["shift"] - half), rel=1e-9)
    assert nightly["shift_high"] == pytest.approx(max(single["shift_high"], single["shift"] + half), rel=1e-9)


@pytest.mark.parametrize(("nights", "verdict"), [(1, "worse"), (10, "worse"), (60, "unclear")])
def test_compare_repeats_needs_the_evidence_of_the_period_of_nights(store, nights, verdict):
    old = [100, 101, 99, 102, 98, 101, 99]
    new = [value + 4.2 for value in old]
    sides = given_values(store, a={"tpot_p50_s": new}, b={"tpot_p50_s": old})
    row = compare(store, *sides, {"tpot_p50_s": 0.01}, nights)["tpot_p50_s"]
    assert row["verdict"] == verdict


def test_compare_repeats_of_equal_nights_falls_back_on_the_permutation_test(store):
    sides = given_values(store, a={"tpot_p50_s": [2] * 5}, b={"tpot_p50_s": [1] * 5})
    row = compare(store, *sides, nights=60)["tpot_p50_s"]
    assert (row["p_value"], row["shift_low"], row["shift_high"]) == (pytest.approx(2 / 252), 1, 1)
