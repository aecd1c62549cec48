"""judgement and audit_judges: verdicts of judges against labels, against themselves and against their order."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
import scipy
from judge_kit import PLACES, audit, give_judge, give_judge_run, vote

from assayline.store.metrics import forget_metrics

SEEDS = range(2)
CORRECT, INCORRECT = "correct", "incorrect"


def wilson(right, n):
    z, p = NormalDist().inv_cdf(0.975), right / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return pytest.approx((center - half, center + half))


def bounds(row, name):
    return row[f"{name}_low"], row[f"{name}_high"]


def clustered(x, clusters):
    """Standard error of a mean, by leaving out one cluster at a time."""
    means = np.array([x[clusters != one].mean() for one in np.unique(clusters)])
    return math.sqrt((len(means) - 1) / len(means) * np.sum((means - x.mean()) ** 2))


def errors(store, judge="judge"):
    """Standard errors by measure, from the table that another client reads."""
    rows = store.read("select measure, standard_error from judge_audit where judges = ?", [judge])
    return {row["measure"]: row["standard_error"] for row in rows}


def test_judgement_has_a_row_per_request_with_its_status(store):
    give_judge(
        store,
        [
            vote("p0", CORRECT, INCORRECT),
            vote("p1", None, CORRECT, error="unreadable"),
            vote("p2", None, error="timeout"),
            vote("p3", None),
            vote("p4", INCORRECT, "perhaps"),
        ],
    )
    rows = store.read("from judgement order by prompt_id")
    assert [row["status"] for row in rows] == ["judged", "unreadable", "error", "missing", "judged"]
    assert [row["verdict"] for row in rows] == [CORRECT, None, None, None, INCORRECT]
    assert [row["value"] for row in rows] == [1, None, None, None, 0]
    assert [row["label"] for row in rows] == [INCORRECT, CORRECT, None, None, "perhaps"]
    assert [row["label_value"] for row in rows] == [0, 1, None, None, None]
    expected = {"judge_run_id": "judge", "scorer": "verdict", "judged_run_id": "judged", "judged_prompt_id": "p0"}
    expected |= {"judged_occurrence": 0, "judged_repeat_index": 0, "other_run_id": None, "first": None}
    assert {key: rows[0][key] for key in expected} == expected and rows[0]["reason"] == "because"
    (row,) = audit(store)
    assert {name: value for name, value in row.items() if name.endswith("_requests") or name == "unknown_labels"} == {
        "judged_requests": 2,
        "unreadable_requests": 1,
        "error_requests": 1,
        "missing_requests": 1,
        "labelled_requests": 1,
        "unknown_labels": 1,
    }
    assert (row["requests"], row["agreement"], row["raw_share"]) == (5, 0, 0.5)


def test_judgement_reads_labels_of_scales_and_pairs(store):
    votes = [vote(str(i), "4", label) for i, label in enumerate(["1", "5", "4", "6", "good"])]
    give_judge(store, votes, scale=[1, 5])
    labels = store.read("select label_value from judgement order by prompt_id")
    assert [row["label_value"] for row in labels] == [0, 1, 0.75, None, None]
    pairs = [
        vote(str(i), "first", label, judge="pairs", run="a", other="b", first="b")
        for i, label in enumerate(["a", "b", "tie", "first"])
    ]
    give_judge(store, pairs, values=PLACES)
    rows = store.read("from judgement where judge_run_id = 'pairs' order by prompt_id")
    assert [row["label_value"] for row in rows] == [1, 0, 0.5, None]
    assert {(row["verdict"], row["value"], row["first"], row["other_run_id"]) for row in rows} == {
        ("first", 0, "b", "b")
    }


def test_judgement_takes_labels_from_its_own_metadata_when_the_judged_run_is_absent(store):
    give_judge(store, [vote("p", CORRECT)])
    store.connection.execute("delete from raw.prompts where run_id = 'judged'")
    store.connection.execute(
        """update raw.prompts set metadata_json = json_merge_patch(metadata_json, '{"human": "incorrect"}')"""
    )
    assert [row["label_value"] for row in store.read("from judgement")] == [0]


def test_audit_without_labels_repeats_and_pairs_is_null_not_zero(store):
    give_judge(store, [vote(f"p{i}", CORRECT) for i in range(9)])
    (row,) = audit(store)
    known = {name for name, value in row.items() if value is not None}
    counts = {name for name in known if name.endswith(("requests", "_labels"))}
    assert known - counts == {
        "judges", "scorer", "judged_run_id", "raw_share", "raw_share_low", "raw_share_high",
    }  # fmt: skip
    assert audit(store, "nobody") == []


def test_audit_of_a_judge_without_any_verdict_has_its_counts(store):
    give_judge(store, [vote("p", None, CORRECT, error="unreadable")])
    (row,) = audit(store)
    assert (row["requests"], row["unreadable_requests"], row["raw_share"], row["agreement"]) == (1, 1, None, None)


def give_table_of(store, counts, **arguments):
    """Votes by counts of (verdict, label), one prompt each."""
    votes, n = [], 0
    for (word, label), count in counts.items():
        votes += [vote(f"p{n + i}", word, label) for i in range(count)]
        n += count
    give_judge(store, votes, **arguments)
    return n


def test_audit_agreement_sensitivity_and_specificity_are_shares_with_wilson_intervals(store):
    give_table_of(
        store,
        {(CORRECT, CORRECT): 40, (INCORRECT, CORRECT): 10, (CORRECT, INCORRECT): 6, (INCORRECT, INCORRECT): 24},
    )
    (row,) = audit(store)
    for name, right, n in (("agreement", 64, 80), ("sensitivity", 40, 50), ("specificity", 24, 30)):
        assert row[name] == pytest.approx(right / n)
        assert bounds(row, name) == wilson(right, n)
    assert row["raw_share"] == pytest.approx(46 / 80) and bounds(row, "raw_share") == wilson(46, 80)


@pytest.mark.parametrize("seed", SEEDS)
def test_audit_kappa_is_that_of_statsmodels(store, seed):
    """Both kappas and their standard errors; ours have n − 1 for n."""
    from statsmodels.stats.inter_rater import cohens_kappa  # takes seconds, which collecting alone is to be spared

    dice = np.random.default_rng(seed)
    table = dice.integers(0, 9, (5, 5)) + 12 * np.eye(5, dtype=int)
    counts = {(str(a + 1), str(b + 1)): int(table[a, b]) for a in range(5) for b in range(5)}
    n = give_table_of(store, counts, scale=[1, 5])
    (row,) = audit(store)
    for name, weights in (("kappa", None), ("weighted_kappa", "fc")):
        known = cohens_kappa(table, wt=weights)
        assert row[name] == pytest.approx(known.kappa)
        assert errors(store)[name] == pytest.approx(known.std_kappa * math.sqrt(n / (n - 1)))
        assert row[f"{name}_low"] < known.kappa < row[f"{name}_high"]


def test_audit_kappa_is_null_for_equal_labels_and_zero_for_an_equal_judge(store):
    give_table_of(store, {(CORRECT, CORRECT): 8, (INCORRECT, CORRECT): 2})
    (row,) = audit(store)
    assert (row["kappa"], row["kappa_low"], row["weighted_kappa"], row["specificity"]) == (None, None, None, None)
    give_judge(store, [vote(f"q{i}", CORRECT, (CORRECT, INCORRECT)[i % 2], judge="yes", run="x") for i in range(10)])
    (row,) = audit(store, "yes")
    assert (row["kappa"], row["kappa_low"], row["kappa_high"]) == (pytest.approx(0), None, None)


def test_audit_counts_repeats_of_a_prompt_as_one_cluster(store):
    dice = np.random.default_rng(3)
    words, labels, clusters = [], [], np.repeat(np.arange(30), 3)
    votes = []
    for i in range(30):
        label = (CORRECT, INCORRECT)[int(dice.random() < 0.4)]
        for repeat in range(3):
            word = label if dice.random() < 0.8 else (CORRECT, INCORRECT)[label == CORRECT]
            votes.append(vote(f"p{i}", word, label, repeat=repeat))
            words.append(word == CORRECT)
            labels.append(label == CORRECT)
    give_judge(store, votes)
    (row,) = audit(store)
    a, b = np.array(words, float), np.array(labels, float)
    observed = np.mean(a == b)
    expected = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    chance = np.where(a == 1, b.mean(), 1 - b.mean()) + np.where(b == 1, a.mean(), 1 - a.mean())
    influence = ((a == b) * (1 - expected) - chance * (1 - observed)) / (1 - expected) ** 2
    assert row["kappa"] == pytest.approx((observed - expected) / (1 - expected))
    assert errors(store)["kappa"] == pytest.approx(clustered(influence, clusters))
    right = (a == b).astype(float)
    plain = np.mean((right - right.mean()) ** 2) / len(right)
    worth = len(right) * min(1, plain / (clustered(right, clusters) ** 2 * 29 / 30))
    worth *= (scipy.stats.t.ppf(0.975, len(right) - 1) / scipy.stats.t.ppf(0.975, 29)) ** 2  # Korn and Graubard
    assert bounds(row, "agreement") == wilson(right.mean() * worth, worth)


@pytest.mark.parametrize("seed", SEEDS)
def test_audit_corrected_share_is_prediction_powered_inference(store, seed):
    """The textbook formula for one label per prompt, with the covariance of the labelled among all."""
    dice = np.random.default_rng(seed)
    truth = dice.random(200) < 0.6
    verdict = np.where(dice.random(200) < 0.85, truth, ~truth)
    has_label = dice.random(200) < 0.3
    words = {True: CORRECT, False: INCORRECT}
    give_judge(
        store,
        [vote(f"p{i}", words[bool(verdict[i])], words[bool(truth[i])] if has_label[i] else None) for i in range(200)],
    )
    (row,) = audit(store)
    f, gap, n = verdict.astype(float), (truth * 1.0 - verdict)[has_label], has_label.sum()
    assert row["corrected_share"] == pytest.approx(f.mean() + gap.mean())
    labelled_f = f[has_label]
    variance = f.var() / 200 + gap.var() / n + 2 * np.mean((labelled_f - f.mean()) * (gap - gap.mean())) / 200
    assert errors(store)["corrected_share"] == pytest.approx(math.sqrt(variance * 200 / 199))
    low, high = bounds(row, "corrected_share")
    assert (low + high) / 2 == pytest.approx(row["corrected_share"])
    assert high - low > 2 * 1.96 * errors(store)["corrected_share"]


def test_audit_has_no_interval_for_four_labels(store):
    give_judge(store, [vote(f"p{i}", CORRECT, (CORRECT, INCORRECT)[i % 2] if i < 4 else None) for i in range(50)])
    (row,) = audit(store)
    assert (row["corrected_share"], *bounds(row, "corrected_share")) == (0.5, None, None)


def alpha(units, distance):
    """Krippendorff's alpha from its definition: mean distance within units and over all pairs of values."""
    units = [unit for unit in units if len(unit) > 1]
    values = [value for unit in units for value in unit]
    within = sum(
        sum(distance(x, y) for i, x in enumerate(unit) for j, y in enumerate(unit) if i != j) / (len(unit) - 1)
        for unit in units
    ) / len(values)
    pairs = [distance(x, y) for i, x in enumerate(values) for j, y in enumerate(values) if i != j]
    return 1 - within / np.mean(pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_audit_alpha_and_flips_are_those_of_the_definition(store, seed):
    dice = np.random.default_rng(seed)
    units = []
    for _ in range(25):
        center = dice.integers(1, 6)
        ratings = np.clip(center + dice.integers(-1, 2, 4), 1, 5)[: dice.integers(1, 5)]
        units.append([int(rating) for rating in ratings])
    votes = [vote(f"p{i}", str(r), repeat=k) for i, unit in enumerate(units) for k, r in enumerate(unit)]
    give_judge(store, [*votes, vote("p0", None, error="unreadable", repeat=9)], scale=[1, 5])
    (row,) = audit(store)
    repeated = [unit for unit in units if len(unit) > 1]
    assert row["nominal_alpha"] == pytest.approx(alpha(units, lambda x, y: x != y))
    assert row["interval_alpha"] == pytest.approx(alpha(units, lambda x, y: (x - y) ** 2))
    assert row["repeated_samples"] == len(repeated)
    flipped = sum(len(set(unit)) > 1 for unit in repeated)
    assert row["flip_share"] == pytest.approx(flipped / len(repeated))
    assert bounds(row, "flip_share") == wilson(flipped, len(repeated))


def test_audit_alpha_is_null_when_all_verdicts_are_equal(store):
    give_judge(store, [vote(f"p{i}", CORRECT, repeat=k) for i in range(3) for k in range(2)])
    (row,) = audit(store)
    assert (row["nominal_alpha"], row["interval_alpha"], row["flip_share"]) == (None, None, 0)


def test_audit_has_a_panel_for_judges_of_one_run(store):
    """Three judges: the word of most, of equally many the lower one, and the mean value."""
    ballots = ["yyy", "yyn", "ynn", "nnn", "yn", "yyy"]
    labels = [CORRECT, CORRECT, CORRECT, INCORRECT, INCORRECT, INCORRECT]
    words = {"y": CORRECT, "n": INCORRECT}
    for judge in range(3):
        votes = [
            vote(f"p{i}", words[ballot[judge]], labels[i], judge=f"j{judge}")
            for i, ballot in enumerate(ballots)
            if judge < len(ballot)
        ]
        give_judge(store, votes)
    give_judge(store, [vote("p", CORRECT, judge="other", run="another run")])
    rows = audit(store, "j0", "j1", "j2", "other")
    assert [row["judges"] for row in rows] == [["j0"], ["j1"], ["j2"], ["other"], ["j0", "j1", "j2"]]
    panel = rows[-1]
    assert (panel["judged_run_id"], panel["requests"]) == ("judged", 17)
    assert panel["agreement"] == pytest.approx(4 / 6)
    assert panel["raw_share"] == pytest.approx(np.mean([1, 2 / 3, 1 / 3, 0, 1 / 2, 1]))
    assert panel["flip_share"] == pytest.approx(3 / 6)
    units = [list(ballot) for ballot in ballots]
    assert panel["nominal_alpha"] == pytest.approx(alpha(units, lambda x, y: x != y))
    assert audit(store, "j0")[0]["nominal_alpha"] is None


def pair_votes(item, first_word, second_word, **columns):
    """The verdicts on a pair in both orders: a shown first, then b."""
    return [
        vote(item, word, run="run a", other="run b", first=first, **columns)
        for first, word in (("a", first_word), ("b", second_word))
        if word
    ]


def give_pairs(store, *words, **columns):
    votes = [row for i, pair in enumerate(words) for row in pair_votes(f"p{i}", *pair, **columns)]
    give_judge(store, votes, values=PLACES)


def test_audit_position_bias_is_the_share_for_the_first_less_that_for_the_second(store):
    give_pairs(
        store,
        *[("first", "second")] * 4,
        *[("second", "first")] * 2,
        *[("first", "first")] * 3,
        ("second", "second"),
        ("tie", "first"),
        ("tie", "tie"),
        ("first", None),
    )
    (row,) = audit(store)
    x = np.array([0] * 6 + [1] * 3 + [-1, 0.5, 0])
    assert row["position_bias"] == pytest.approx(x.mean())
    half = 2.2009851600916384 * x.std(ddof=1) / math.sqrt(12)
    assert bounds(row, "position_bias") == pytest.approx((x.mean() - half, x.mean() + half), rel=1e-5)
    assert row["consistent_share"] == pytest.approx(7 / 12)
    assert bounds(row, "consistent_share") == wilson(7, 12)
    assert row["raw_share"] == pytest.approx((8 + 3 + 1 + 0.5 + 1 + 1) / 25)
    assert row["length_bias"] is None


def test_audit_length_bias_is_the_share_for_the_longer_less_that_for_the_shorter(store):
    give_pairs(store, *[("first", "second")] * 5, *[("second", "first")] * 3, ("tie", "tie"), ("first", "second"))
    lengths = {f"p{i}": (20, 5) for i in range(9)} | {"p9": (5, 5), "p7": (1, 5)}
    for run, place in (("run a", 0), ("run b", 1)):
        keys = [{"run_id": run, "prompt_id": item, "request_id": item} for item in lengths]
        store.given("requests", *keys)
        store.given(
            "completions",
            *(
                {"run_id": run, "request_id": item, "text": "x" * length[place], "finished_at_s": 1.0}
                for item, length in lengths.items()
            ),
            {"run_id": run, "request_id": "p0", "error_kind": "timeout", "finished_at_s": 0.5},
        )
    (row,) = audit(store)
    x = np.array([1, 1, 1, 1, 1, -1, -1, 1, 0], float)
    assert row["length_bias"] == pytest.approx(x.mean())
    half = 2.306004135 * x.std(ddof=1) / 3
    assert bounds(row, "length_bias") == pytest.approx((x.mean() - half, 1.0)), "cut at 1"


def test_judge_audit_has_the_last_audit_until_a_run_changes(store):
    """Of clusters of unequal size: the passages that the judged prompts are about."""
    dice = np.random.default_rng(1)
    sizes = [30, 12, *[2] * 12]
    passage = np.repeat(np.arange(len(sizes)), sizes)
    right = dice.random(len(passage)) < np.repeat(dice.beta(1.5, 0.7, len(sizes)), sizes)
    give_judge(store, [vote(f"p{i}", (INCORRECT, CORRECT)[int(one)]) for i, one in enumerate(right)])
    spec = json.dumps({"prompts": {"columns": {"cluster": "passage"}}})
    store.given("runs", {"run_id": "judged", "spec_json": spec})
    named = json.dumps({f"p{i}": int(one) for i, one in enumerate(passage)})
    place = "json_object('passage', json_extract_string(?, '$.' || prompt_id))"
    store.connection.execute(f"update raw.prompts set metadata_json = {place} where run_id = 'judged'", [named])
    audit(store), audit(store)
    query = "select value, standard_error, low, high, n from judge_audit where measure = 'raw_share'"
    ((value, error, low, high, n),) = store.connection.execute(query).fetchall()
    assert (value, n) == (right.mean(), len(right)) and error == pytest.approx(clustered(right.astype(float), passage))
    effective = sum(sizes) ** 2 / sum(size**2 for size in sizes)
    worth = value * (1 - value) * len(sizes) / (len(sizes) - 1) / error**2
    worth *= (scipy.stats.t.ppf(0.975, len(right) - 1) / scipy.stats.t.ppf(0.975, effective - 1)) ** 2
    assert (low, high) == wilson(value * worth, worth)
    forget_metrics(store.connection, "judged")
    assert store.read("from judge_audit") == []


def test_judgement_takes_the_newest_label_of_a_person_before_the_column(store):
    give_judge(store, [vote(f"p{i}", CORRECT, CORRECT) for i in range(4)])
    give_judge_run(store, "judge", "judged", rubric="right")
    labels = [
        ("p0", "right", INCORRECT, 1),
        ("p1", None, INCORRECT, 1),  # no judge had asked yet
        ("p1", None, CORRECT, 2),
        ("p2", "helpful", INCORRECT, 1),  # another question
        ("p3", "right", INCORRECT, 1),
        ("p3", "right", None, 2),  # withdrawn
        ("p3", None, "4", 3),  # not a word of this judge
    ]
    for prompt_id, rubric, label, day in labels:
        row = [prompt_id, rubric, label, f"2026-01-0{day}"]
        store.connection.execute("insert into labels values ('judged', ?, 0, 0, ?, ?, 'ada', ?)", row)
    found = store.read("select judged_prompt_id, label, label_value from judgement order by all")
    assert [tuple(row.values()) for row in found] == [
        ("p0", INCORRECT, 0.0),
        ("p1", CORRECT, 1.0),
        ("p2", CORRECT, 1.0),
        ("p3", CORRECT, 1.0),
    ]
    assert audit(store)[0]["agreement"] == 0.75
