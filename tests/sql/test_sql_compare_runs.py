"""compare_runs and pair_prompts: two runs, prompt by prompt."""

import json

import numpy as np
import pytest
import scipy

from assayline.comparison.queries import compare_accuracy, compare_scores, list_comparable
from assayline.stats.pairs import bound_ratio, describe_pairs

SEEDS = range(3)


def given_scores(store, run_id, values, scorer="exact_match", arguments="{}", definition="digest"):
    """One score per (prompt, occurrence, repeat): a mapping from prompt to a value, or to a list of repeats' values."""
    samples = [
        (prompt, occurrence, repeat, value)
        for (prompt, occurrence), found in values.items()
        for repeat, value in enumerate(found if isinstance(found, list) else [found])
    ]
    if not store.rows("runs", "run_id", run_id=run_id):
        store.given("runs", {"run_id": run_id})
    store.connection.executemany(
        "insert into scores (run_id, scorer, prompt_id, occurrence, repeat_index, value) values (?, ?, ?, ?, ?, ?)",
        [(run_id, scorer, *sample) for sample in samples],
    )
    store.connection.execute(
        "insert into scorers values (?, ?, 'exact_match', 0, ?, '0', timestamp '2026-01-01', ?)",
        [run_id, scorer, arguments, definition],
    )


def compare(store, candidate="new", baseline="old", pair_by="auto", baseline_repeats=()):
    """Rows of compare_scores, which have what compare_runs reads, by SQL alone."""
    found = compare_scores(store.connection, candidate, baseline, pair_by, baseline_repeats)
    query = "from compare_runs(?, ?, pair_by := ?, baseline_repeats := ?::varchar[]) order by scorer"
    known = store.read(query, candidate, baseline, pair_by, list(baseline_repeats))
    rows = [one.pairs for one in found.values()]
    assert len(known) == len(rows)
    for row, each in zip(rows, known, strict=True):
        assert {name: row[name] for name in each} == pytest.approx(each)
    return rows


def named(values):
    return {(f"p{i}", 0): float(value) for i, value in enumerate(values)}


@pytest.mark.parametrize("samples", [1, 5])
def test_recovery_interval_holds_the_ratios_that_the_pairs_do_not_exclude(store, samples):
    """Of candidate − r × baseline over all pairs, with one more that is better and one that is worse."""
    dice = np.random.default_rng(samples)
    new, old = (dice.binomial(samples, chance, 200) / samples for chance in (0.6, 0.7))
    given_scores(store, "new", named(new))
    given_scores(store, "old", named(old))
    (row,) = compare(store)
    low, high = bound_ratio(row)
    size = padding_of(new - old)
    new, old = np.append(new, [size, 0]), np.append(old, [0, size])
    quantile = scipy.stats.t.ppf(0.975, 199)
    for ratio, is_held in ((low + 1e-6, True), (high - 1e-6, True), (low - 1e-6, False), (high + 1e-6, False)):
        rest = new - ratio * old
        assert (abs(rest.mean()) < quantile * rest.std() / np.sqrt(len(rest))) == is_held
    assert (low < 1 < high) == (row["low"] < 0 < row["high"])


def test_pairs_are_prompt_rows_of_both_runs(store):
    given_scores(store, "new", {("a", 0): 1, ("a", 1): 0, ("b", 0): [1, 0], ("only new", 0): 1})
    given_scores(store, "old", {("a", 0): 0, ("a", 1): 0, ("b", 0): [1, 1], ("gone", 0): 1, ("lost", 0): 0})
    given_scores(store, "third", {("a", 0): 1})
    (row,) = compare(store)
    assert (row["prompts"], row["only_candidate"], row["only_baseline"]) == (3, 1, 2)
    assert row["overlap_share"] == pytest.approx(0.5)
    assert (row["candidate_mean"], row["baseline_mean"]) == (pytest.approx(0.5), pytest.approx(1 / 3))
    assert row["difference"] == pytest.approx(1 / 6)
    assert (row["better_prompts"], row["worse_prompts"]) == (1, 1)
    assert not row["is_proportion"], "half a point is neither right nor wrong"
    assert (row["low"], row["high"], row["p_value"]) == (None, None, None)
    assert row["same_scorer"] is True


@pytest.mark.parametrize("seed", SEEDS)
def test_one_score_per_prompt_is_the_paired_t_test(store, seed):
    dice = np.random.default_rng(seed)
    size = int(dice.integers(5, 400))
    old = dice.random(size)
    new = np.clip(old + dice.normal(0.01, 0.2, size), 0, 1)
    given_scores(store, "new", named(new))
    given_scores(store, "old", named(old))
    (row,) = compare(store)
    test = scipy.stats.ttest_rel(new, old)
    assert row["difference"] == pytest.approx(np.mean(new) - np.mean(old))
    assert row["difference"] / row["standard_error"] == pytest.approx(test.statistic)
    assert row["p_value"] == pytest.approx(padded_p(row, 2.0 ** (1 - np.sum(new != old))), rel=1e-4)
    assert not row["is_proportion"]
    low, high = padded_interval(new - old, scipy.stats.t.ppf(0.975, size - 1))
    assert (row["low"], row["high"]) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))
    interval = test.confidence_interval(0.95)
    assert low < interval.low and interval.high < high, "wider than the t interval by two pairs"


def test_small_differences_of_few_prompts_fail_a_limit_that_they_clear(store):
    """Six points lost on 50 prompts, whose differences have a standard deviation of 3, are t = 14."""
    dice = np.random.default_rng(1)
    old = dice.uniform(0.3, 0.9, 50)
    given_scores(store, "new", named(old - 0.06 + 0.03 * dice.standard_normal(50)))
    given_scores(store, "old", named(old))
    (row,) = compare(store)
    assert describe_pairs(row, 0.02).judge() == "fail" and describe_pairs(row, 0.1).judge() == "pass"


def padding_of(differences):
    """The size of the pairs more: the largest difference for those that differ, 1 for those that do not."""
    return np.sqrt(np.where(differences == 0, 1, np.abs(differences).max() ** 2).mean())


def padded_interval(differences, quantile):
    """Wald's interval of the mean with two pairs more."""
    padded = np.append(differences, [padding_of(differences), -padding_of(differences)])
    half = quantile * padded.std() / np.sqrt(len(padded))
    return max(-1, padded.mean() - half), min(1, padded.mean() + half)


def padded_p(row, signs):
    """The p of the test whose interval the row has, and at least that of the signs."""
    spread = scipy.stats.t(row["effective_clusters"] - 1)
    error = (row["high"] - row["low"]) / 2 / spread.ppf(0.975)
    return max(signs, 2 * spread.sf(abs(row["high"] + row["low"]) / 2 / error))


@pytest.mark.parametrize(("better", "worse", "same"), [(0, 0, 40), (9, 4, 187), (0, 12, 30), (3, 3, 0), (2, 12, 141)])
def test_interval_of_paired_proportions_is_bonett_and_prices(store, better, worse, same):
    n = better + worse + same
    given_scores(store, "new", named([1] * better + [0] * worse + [1] * same))
    given_scores(store, "old", named([0] * better + [1] * worse + [1] * same))
    (row,) = compare(store)
    gains, losses = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = scipy.stats.t.ppf(0.975, n - 1) * np.sqrt((gains + losses - (gains - losses) ** 2) / (n + 2))
    assert row["low"] == pytest.approx(max(-1, gains - losses - half))
    assert row["high"] == pytest.approx(min(1, gains - losses + half))
    assert (row["clusters"], row["is_proportion"]) == (n, True)


def test_compare_runs_never_proves_from_equal_answers(store):
    for n, widest in ((5, 0.58), (155, 0.018), (1000, 0.0028)):
        store.connection.execute("delete from scores; delete from scorers")
        given_scores(store, "new", named([1] * n))
        given_scores(store, "old", named([1] * n))
        (row,) = compare(store)
        assert (row["p_value"], row["difference"]) == (1, 0)
        assert row["low"] == -row["high"] and 0.95 * widest < row["high"] < widest


@pytest.mark.parametrize(("prompts", "p_value"), [(5, 0.0625), (6, 0.03125)])
def test_equal_losses_are_not_worse_by_having_no_spread(store, prompts, p_value):
    """Five prompts that each lose exactly half a point have a standard error of 0."""
    given_scores(store, "new", named([0.5] * prompts))
    given_scores(store, "old", named([1] * prompts))
    (row,) = compare(store)
    assert (row["standard_error"], row["p_value"]) == (0, p_value)
    assert row["low"] < -0.5


def test_equal_losses_within_clusters_count_as_one_pair_a_cluster(store):
    for prompts, rows in ((10, 1), (10, 5)):
        store.connection.execute("delete from scores; delete from scorers")
        values = {(f"p{i}", occurrence): 0.4 for i in range(prompts) for occurrence in range(rows)}
        given_scores(store, "new", values)
        given_scores(store, "old", dict.fromkeys(values, 0.5))
        (row,) = compare(store)
        low, high = padded_interval(np.full(prompts, -0.1), scipy.stats.t.ppf(0.975, prompts - 1))
        assert (row["low"], row["high"]) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5)), rows
        assert (row["clusters"], row["p_value"]) == (prompts, pytest.approx(2.0 ** (1 - prompts)))


def test_changes_that_cancel_within_clusters_have_a_p_value_of_1(store):
    """0.3 - 0.5 and 0.7 - 0.5 add up to 0, except for rounding."""
    values = {(f"p{i}", occurrence): (0.3, 0.7)[occurrence] for i in range(20) for occurrence in (0, 1)}
    given_scores(store, "new", values)
    given_scores(store, "old", dict.fromkeys(values, 0.5))
    (row,) = compare(store)
    assert row["p_value"] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_compare_runs_takes_questions_over_one_passage_as_a_cluster(store, seed):
    """Thirty passages of one to six questions: the jackknife, and t by the effective passages."""
    dice = np.random.default_rng(seed)
    passages = np.repeat(np.arange(30), dice.integers(1, 7, 30))
    lost = dice.random(30)[passages] < 0.3
    old = dice.integers(0, 2, len(passages))
    new = np.where(lost, 0, old)
    spec = '{"prompts": {"columns": {"cluster": "the \\"passage/~1"}}}'
    for run_id, values in (("new", new), ("old", old)):
        given_scores(store, run_id, named(values))
        store.connection.execute("update runs set spec_json = ? where run_id = ?", [spec, run_id])
        store.given("prompts", *(
            {"run_id": run_id, "prompt_id": f"p{i}", "metadata_json": json.dumps({'the "passage/~1': int(passage)})}
            for i, passage in enumerate(passages)
        ))  # fmt: skip
    (row,) = compare(store)
    change, sizes = new - old, np.bincount(passages)
    left = np.array([change[passages != passage].mean() for passage in range(30)])
    error, degrees = np.sqrt(29 / 30 * np.sum((left - change.mean()) ** 2)), sizes.sum() ** 2 / np.sum(sizes**2) - 1
    assert (row["clusters"], row["prompts"], row["is_proportion"]) == (30, len(passages), False)
    assert (row["standard_error"], row["effective_clusters"]) == (pytest.approx(error), pytest.approx(degrees + 1))
    assert row["p_value"] == pytest.approx(padded_p(row, 2.0 ** (1 - len(set(passages[new != old])))), rel=1e-4)
    assert row["high"] - row["low"] > 2 * scipy.stats.t.ppf(0.975, degrees) * error
    store.connection.execute("update runs set spec_json = '{}'")
    (row,) = compare(store)
    assert (row["clusters"], row["is_proportion"]) == (len(passages), True)


@pytest.mark.parametrize("seed", SEEDS)
def test_p_of_proportions_is_at_least_mcnemars_mid_p(store, seed):
    dice = np.random.default_rng(100 + seed)
    size = int(dice.integers(6, 300))
    old, new = dice.integers(0, 2, size), dice.integers(0, 2, size)
    given_scores(store, "new", named(new))
    given_scores(store, "old", named(old))
    (row,) = compare(store)
    better, worse = int(np.sum(new > old)), int(np.sum(new < old))
    assert (row["better_prompts"], row["worse_prompts"]) == (better, worse)
    assert row["p_value"] == pytest.approx(padded_p(row, mid_p(better, worse)), rel=1e-4)


def mid_p(better, worse):
    binomial, k = scipy.stats.binom(better + worse, 0.5), min(better, worse)
    return 2 * binomial.cdf(k) - binomial.pmf(k)


@pytest.mark.parametrize(("better", "worse"), [(5_000, 5_000), (4_700, 5_300), (0, 3_000), (9_000, 200)])
def test_mcnemar_holds_with_thousands_of_discordant_pairs(store, better, worse):
    store.given("runs", {"run_id": "new"}, {"run_id": "old"})
    store.connection.execute(
        """
        insert into scores (run_id, scorer, prompt_id, occurrence, repeat_index, value)
        select run_id, 's', i, 0, 0, case when run_id = 'new' then i < ? else i >= ? end
        from range(?) as numbers(i), (values ('new'), ('old')) as runs(run_id)
        """,
        [better, better, better + worse],
    )
    (row,) = compare(store)
    assert row["p_value"] == pytest.approx(mid_p(better, worse), rel=1e-7, abs=1e-300)


def test_compare_runs_ignores_harness_results_in_scorer_arguments(store):
    given_scores(store, "new", named([1, 1]), "acc", '{"filter": "none", "harness": {"task": 1.0}}')
    given_scores(store, "old", named([1, 0]), "acc", '{"filter": "none", "harness": {"task": 0.5}}')
    given_scores(store, "new", named([1]), "other", '{"filter": "none", "harness": {"task": 1.0}}')
    given_scores(store, "old", named([1]), "other", '{"filter": "strict", "harness": {"task": 1.0}}')
    assert {row["scorer"]: row["same_scorer"] for row in compare(store)} == {"acc": True, "other": False}


def test_compare_runs_takes_a_changed_scorer_for_another(store):
    """All 60 answers are equal; their scores changed with the scorer."""
    given_scores(store, "new", named([1] * 60), definition="digest of today")
    given_scores(store, "old", named([0] * 60), definition="digest of before")
    (row,) = compare(store)
    assert (row["same_scorer"], row["difference"]) == (False, 1.0)
    store.connection.execute("update scorers set definition = 'digest of today'")
    (row,) = compare(store)
    assert row["same_scorer"] is True


@pytest.mark.parametrize("seed", SEEDS)
def test_compare_runs_counts_pairs_with_an_error(store, seed):
    dice = np.random.default_rng(seed)
    errors = {run: dice.random((40, 3)) < 0.1 for run in ("new", "old")}
    for run, is_error in errors.items():
        values = {(f"p{i}", 0): [0.0 if wrong else 1.0 for wrong in repeats] for i, repeats in enumerate(is_error)}
        given_scores(store, run, values | {(f"only {run}", 0): [0.0]})
        kinds = [
            (run, f"p{prompt}", repeat) for prompt, repeats in enumerate(is_error) for repeat in np.flatnonzero(repeats)
        ]
        store.connection.executemany(
            "update scores set error_kind = 'timeout' where run_id = ? and prompt_id = ? and repeat_index = ?",
            [(name, prompt, int(repeat)) for name, prompt, repeat in [*kinds, (run, f"only {run}", 0)]],
        )
    (row,) = compare(store)
    assert row["prompts"] == 40
    assert row["error_pairs"] == int(np.sum(errors["new"].any(axis=1) | errors["old"].any(axis=1)))


def test_a_few_changed_prompts_are_not_enough(store):
    """Four lost and none won: the paired t interval leaves out 0, and the test does not."""
    old = np.ones(100)
    for lost, p_value in ((0, 1), (4, 0.101139), (5, 0.057252)):
        store.connection.execute("delete from scores")
        store.connection.execute("delete from scorers")
        new = old.copy()
        new[:lost] = 0
        given_scores(store, "new", named(new))
        given_scores(store, "old", named(old))
        (row,) = compare(store)
        assert row["p_value"] == pytest.approx(p_value, abs=1e-6), row
        assert (row["high"] < 0) == (row["p_value"] < 0.05), "the interval is of the test"


def test_every_scorer_has_a_row_of_its_own(store):
    given_scores(store, "new", named([1, 1]), "both", '{"a": 1}')
    given_scores(store, "old", named([1, 0]), "both", '{"a": 2}')
    given_scores(store, "new", named([1]), "one")
    rows = {row["scorer"]: row for row in compare(store)}
    assert (rows["both"]["same_scorer"], rows["both"]["prompts"]) == (False, 2)
    assert (rows["one"]["same_scorer"], rows["one"]["prompts"], rows["one"]["overlap_share"]) == (None, 0, 0)
    assert rows["one"]["difference"] is None and rows["one"]["p_value"] is None


def given_rows(store, run_id, *rows, source="a"):
    """A run whose prompt rows are (prompt_id, source_id, source_row, target, score or scores of repeats)."""
    given_scores(store, run_id, {(prompt, 0): value for prompt, *_, value in rows})
    store.connection.execute("update runs set spec_json = ? where run_id = ?", [SPEC % source, run_id])
    names = ("prompt_id", "source_id", "source_row", "target")
    store.given("prompts", *({"run_id": run_id, **dict(zip(names, row, strict=False))} for row in rows))


SPEC = '{"prompts": {"source": "%s"}}'


def test_pair_prompts_pairs_by_source_row_of_equal_target_when_the_template_differs(store):
    given_rows(store, "new", ("n0", None, 0, "7", [1, 0]), ("n1", None, 1, "8", 1), ("n2", None, 2, None, 1))
    given_rows(store, "old", ("o1", None, 1, "8", 0), ("o0", None, 0, "7", 1), ("o2", None, 2, None, 1))
    columns = "prompt_id, baseline_prompt_id, candidate_value, baseline_value, difference"
    rows = store.read(f"select {columns} from pair_prompts('new', 'old', pair_by := 'row') order by all")
    assert [tuple(row.values()) for row in rows] == [
        ("n0", "o0", 0.5, 1.0, -0.5),
        ("n1", "o1", 1.0, 0.0, 1.0),
        ("n2", None, 1.0, None, None),
        ("o2", "o2", None, 1.0, None),
    ], "a row without a target pairs with none"
    (row,) = compare(store, pair_by="row")
    assert (row["paired_by"], row["prompts"], row["only_candidate"], row["only_baseline"]) == ("row", 2, 1, 1)


def test_pair_prompts_never_pairs_rows_of_other_targets(store):
    given_rows(store, "new", ("n0", "i0", 0, "7", 1), ("n1", "i1", 1, "8", 1))
    given_rows(store, "old", ("o0", "i0", 0, "7", 1), ("o1", "i1", 1, "9", 1))
    for pairing in ("id", "row"):
        (row,) = compare(store, pair_by=pairing)
        assert (row["prompts"], row["only_candidate"], row["only_baseline"]) == (1, 1, 1), pairing


def test_pair_prompts_averages_rows_of_one_id(store):
    given_rows(store, "new", ("n0", "x", 0, None, 1), ("n1", "x", 1, None, 0))
    given_rows(store, "old", ("o0", "x", 5, None, 0))
    (row,) = compare(store, pair_by="id")
    assert (row["prompts"], row["candidate_mean"], row["baseline_mean"]) == (1, 0.5, 0.0)


@pytest.mark.parametrize(
    ("old", "source", "chosen"),
    [
        ([(f"n{i}", None, i, "7") for i in range(10)], "a", "prompt"),
        ([(f"n{i}" if i else "o0", "x" if i else "i0", i, "7") for i in range(10)], "a", "prompt"),
        ([(f"o{i}", f"i{i}", 20 + i, "7") for i in range(10)], "b", "id"),
        ([(f"o{i}", None, i, "7") for i in range(10)], "a", "row"),
        ([(f"o{i}", None, i, "7") for i in range(10)], "b", "prompt"),
        ([(f"o{i}", None, i, "7" if i < 8 else "8") for i in range(10)], "a", "prompt"),
    ],
    ids=["equal prompts", "one other prompt", "ids", "rows", "rows of another source", "another target"],
)
def test_overlap_prompts_chooses_the_first_pairing_with_enough_rows(store, old, source, chosen):
    given_rows(store, "new", *((f"n{i}", f"i{i}", i, "7", 1) for i in range(10)))
    given_rows(store, "old", *((*row, 1) for row in old), source=source)
    rows = store.read("from overlap_prompts('new', 'old', min_overlap := 0.8)")
    assert [row["pairing"] for row in rows] == ["prompt", "id", "row"]
    assert [row["pairing"] for row in rows if row["is_chosen"]] == [chosen]


def test_overlap_prompts_has_three_rows_without_prompts(store):
    rows = store.read("from overlap_prompts('new', 'old')")
    assert [(row["prompts"], row["overlap_share"], row["is_chosen"]) for row in rows] == [
        (0, None, True),
        (0, None, False),
        (0, None, False),
    ]


def test_compare_runs_clusters_by_the_side_with_fewer_prompts(store):
    """Five questions of which a template shows only two kinds: two clusters, whichever run is the candidate."""
    given_rows(store, "new", *((f"n{i}", f"i{i}", i, "7", i % 2) for i in range(6)))
    given_scores(store, "old", {(f"o{i % 2}", i // 2): 0 for i in range(6)})
    store.given("prompts", *(
        {"run_id": "old", "prompt_id": f"o{i % 2}", "occurrence": i // 2, "source_row": i, "target": "7"}
        for i in range(6)
    ))  # fmt: skip
    rows = [compare(store, *sides, "row")[0] for sides in (("new", "old"), ("old", "new"))]
    assert [(row["prompts"], row["low"], row["p_value"]) for row in rows] == [(6, None, None)] * 2
    assert rows[0]["standard_error"] == pytest.approx(rows[1]["standard_error"])


def test_compare_runs_takes_the_mean_of_the_baseline_and_its_repeats(store):
    given_scores(store, "new", named([1, 0, 1, 0, 1]))
    given_scores(store, "old", named([1, 1, 1, 1, 1]))
    given_scores(store, "old2", named([1, 0, 1, 1, 0]))
    given_scores(store, "other", named([0, 0, 0, 0, 0]))
    (alone,) = compare(store)
    (row,) = compare(store, baseline_repeats=["old", "old2"])
    assert (alone["baseline_mean"], row["baseline_mean"]) == (1, pytest.approx(0.8))
    assert (row["prompts"], row["worse_prompts"], row["better_prompts"]) == (5, 2, 1)
    assert not row["is_proportion"] and row["difference"] == pytest.approx(-0.2)


def test_list_comparable_leaves_out_repeats_with_another_definition_of_the_scorer(store):
    for run_id, changes in {
        "old": {}, "same": {}, "asked": {"arguments": '{"pattern": "b"}'}, "changed": {"definition": "newer"},
    }.items():  # fmt: skip
        given_scores(store, run_id, named([1]), **changes)
    repeats = ["asked", "changed", "none", "old", "same"]
    assert list_comparable(store.connection, "old", repeats, "exact_match") == ["old", "same"]


@pytest.mark.parametrize("pairing", ["prompt", "id", "row"])
def test_pair_prompts_counts_rows_of_a_repeat_as_rows_of_the_baseline(store, pairing):
    for run_id in ("new", "old", "old2"):
        given_rows(store, run_id, ("p", None, 0, None, 1), ("q", "b", 1, "t", 0))
    query = (
        "select baseline_value is null as is_alone, count(*) as n from pair_prompts('new', 'old', pair_by := '{}'{})"
    )
    alone, repeated = (
        store.read(query.format(pairing, more) + " group by all order by all")
        for more in ("", ", baseline_repeats := ['old2']")
    )
    assert alone == repeated


def test_compare_accuracy_counts_copies_of_an_answer_once(store):
    """Four of 155 answers become wrong in all of five equal repeats: four pairs, whatever the number of copies."""
    for side in "ab":
        for repeat in range(5):
            run_id = f"{side}{repeat}"
            store.given("runs", {"run_id": run_id})
            store.given("scorers", {"run_id": run_id, "scorer": "s"})
            values = [float(side == "b" or prompt >= 4) for prompt in range(155)]
            rows = [{"run_id": run_id, "scorer": "s", "prompt_id": f"p{i}", "value": v} for i, v in enumerate(values)]
            store.given("scores", *rows)
    sides = ([f"{side}{repeat}" for repeat in range(5)] for side in "ab")
    row = compare_accuracy(store.connection, *sides, 0.02)
    assert (row.name_change(), row.p_value) == ("unclear", pytest.approx(0.101589, abs=1e-6))
    assert row.low < -0.05 and row.high > 0 and row.counts == (155, 155)
