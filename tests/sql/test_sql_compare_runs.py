"""compare_runs and pair_prompts: two runs, prompt by prompt."""

import json

import numpy as np
import pytest
import scipy

from assayline.comparison.queries import compare_accuracy, compare_scores, list_comparable
from assayline.stats.pairs import bound_ratio, describe_pairs

SEEDS = range(3)
KINDS = ("proportions", "shares", "scores", "passages")


def given_scores(store, run_id, values, scorer="exact_match", arguments="{}", definition="digest"):
    """One score per (prompt, occurrence, repeat): a mapping from prompt to a value, or to a list of repeats' values."""
    samples = [
        {"prompt_id": prompt, "occurrence": occurrence, "repeat_index": repeat, "value": float(value)}
        for (prompt, occurrence), found in values.items()
        for repeat, value in enumerate(found if isinstance(found, list) else [found])
    ]
    if not store.rows("runs", "run_id", run_id=run_id):
        store.given("runs", {"run_id": run_id})
    given = {"run_id": run_id, "scorer": scorer}
    store.given("scores", *({**given, **sample} for sample in samples))
    store.given("scorers", {**given, "arguments_json": arguments, "definition": definition})


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


def mid_p(better, worse):
    binomial, k = scipy.stats.binom(better + worse, 0.5), min(better, worse)
    return 2 * binomial.cdf(k) - binomial.pmf(k)


def padding_of(differences):
    """The size of the pairs more: the largest difference for those that differ, 1 for those that do not."""
    return np.sqrt(np.where(differences == 0, 1, np.abs(differences).max() ** 2).mean())


def expect(new, old, passages):
    """The jackknife over passages, and Wald's interval and t-test with two pairs more, by effective passages."""
    change, (_, place, sizes) = new - old, np.unique(passages, return_inverse=True, return_counts=True)
    n, clusters, mean = len(change), len(sizes), change.mean()
    left = np.array([change[place != one].mean() for one in range(clusters)])
    error, degrees = np.sqrt((clusters - 1) / clusters * np.sum((left - mean) ** 2)), n**2 / np.sum(sizes**2) - 1
    worth = n
    if clusters < n:
        plain = np.mean(change**2) - mean**2
        worth = clusters if plain < 1e-15 else min(n, plain * clusters / (clusters - 1) / error**2) if error else n
    values, weights = [*change, padding_of(change), -padding_of(change)], [*[worth / n] * n, 1, 1]
    center = np.average(values, weights=weights)
    wald = np.sqrt(np.average((values - center) ** 2, weights=weights) / (worth + 2))
    moved = np.abs(np.bincount(place, change)) > 1e-12
    is_proportion = bool(clusters == n and np.isin([new, old], (0, 1)).all())
    signs = mid_p(np.sum(change > 0), np.sum(change < 0)) if is_proportion else min(1, 2.0 ** (1 - moved.sum()))
    half = scipy.stats.t.ppf(0.975, degrees) * wald
    return {
        "prompts": n, "clusters": clusters, "is_proportion": is_proportion, "effective_clusters": degrees + 1,
        "difference": mean, "standard_error": error, "better_prompts": np.sum(change > 0),
        "worse_prompts": np.sum(change < 0), "low": max(-1, center - half), "high": min(1, center + half),
        "p_value": max(signs, 2 * scipy.stats.t.sf(abs(center) / wald, degrees)),
    }  # fmt: skip


def flips(better, worse, same):
    return [1] * better + [0] * worse + [1] * same, [0] * better + [1] * worse + [1] * same


def draw(kind, seed):
    """Scores of two runs: by chance, shares of samples, six points lost, or right unless a passage is lost."""
    dice = np.random.default_rng([seed, len(kind)])
    if kind == "proportions":
        return dice.integers(0, 2, (2, dice.integers(6, 300)))
    if kind == "shares":
        return [dice.binomial(5, chance, 200) / 5 for chance in (0.6, 0.7)]
    if kind == "losses":
        old = dice.uniform(0.3, 0.9, 50)
        return old - 0.06 + 0.03 * dice.standard_normal(50), old
    if kind == "scores":
        old = dice.random(dice.integers(5, 400))
        return np.clip(old + dice.normal(0.01, 0.2, len(old)), 0, 1), old
    passages = np.repeat(np.arange(30), dice.integers(1, 7, 30))
    old = dice.integers(0, 2, len(passages))
    return np.where(dice.random(30)[passages] < 0.3, 0, old), old, passages


CASES = {
    **{f"{kind} {seed}": draw(kind, seed) for kind in KINDS for seed in SEEDS},
    **{f"{sides}": flips(*sides) for sides in ((9, 4, 187), (0, 12, 30), (3, 3, 0), (2, 12, 141), (120, 140, 0))},
    **{f"{n} equal answers": flips(0, 0, n) for n in (5, 40, 155, 1000)},
    **{f"{n} of 100 lost": flips(0, n, 100 - n) for n in (4, 5)},
    **{f"{n} equal losses": ([0.5] * n, [1] * n) for n in (5, 6)},
    "equal losses in 10 passages": ([0.4] * 50, [0.5] * 50, np.arange(50) // 5),
    "changes that cancel, except for rounding": ([0.3, 0.7] * 20, [0.5] * 40, np.arange(40) // 2),
    "small losses": draw("losses", 1),
}
FACTS = {
    **{f"{n} equal answers": {"p_value": 1, "difference": 0} for n in (5, 40, 155, 1000)},
    "4 of 100 lost": {"p_value": 0.101139}, "5 of 100 lost": {"p_value": 0.057252},
    "5 equal losses": {"standard_error": 0, "p_value": 0.0625}, "6 equal losses": {"p_value": 0.03125},
    "equal losses in 10 passages": {"p_value": 2.0**-9}, "changes that cancel, except for rounding": {"p_value": 1},
}  # fmt: skip
"""Columns of some cases, by name."""


def test_compare_scores_is_the_padded_t_test_of_every_case(store):
    """Each case is a scorer of the same two runs: planning a query takes longer than comparing them all."""
    cases = {
        name: [*np.array(case[:2], float), np.array(case[2] if len(case) > 2 else range(len(case[0])))]
        for name, case in CASES.items()
    }
    column = 'the "passage/~1'
    for run_id in ("new", "old"):
        spec = json.dumps({"prompts": {"columns": {"cluster": column}}})
        store.given("runs", {"run_id": run_id, "spec_json": spec})
        for name, (*sides, passages) in cases.items():
            given_scores(store, run_id, {(f"{name} {i}", 0): v for i, v in enumerate(sides[run_id == "old"])}, name)
            cells = [json.dumps({column: f"{name} {passage}"}) for passage in passages]
            rows = ({"prompt_id": f"{name} {i}", "metadata_json": cell} for i, cell in enumerate(cells))
            store.given("prompts", *rows, run_id=run_id)
    rows = {row["scorer"]: row for row in compare(store)}
    for name, case in cases.items():
        expected = expect(*case)
        assert {column: rows[name][column] for column in expected} == pytest.approx(expected, abs=1e-12), name
        told = FACTS.get(name, {})
        assert {column: rows[name][column] for column in told} == pytest.approx(told, abs=1e-6), name
    for n, widest in ((5, 0.58), (155, 0.018), (1000, 0.0028)):
        low, high = (rows[f"{n} equal answers"][end] for end in ("low", "high"))
        assert low == -high and 0.95 * widest < high < widest, "equal answers prove nothing"
    for name in ("proportions 0", "shares 0", "shares 1"):
        expect_ratio(rows[name], *cases[name][:2])
    small = rows["small losses"]
    assert describe_pairs(small, 0.02).judge() == "fail" and describe_pairs(small, 0.1).judge() == "pass", "t is 14"
    store.connection.execute("update runs set spec_json = '{}'")
    rows = {row["scorer"]: row for row in compare(store)}
    assert (rows["passages 0"]["clusters"], rows["passages 0"]["is_proportion"]) == (len(cases["passages 0"][0]), True)


def expect_ratio(row, new, old):
    """The interval holds the ratios r for which that of candidate − r × baseline, with a pair more each, holds 0."""
    low, high = bound_ratio(row)
    size = padding_of(new - old)
    new, old = np.append(new, [size, 0]), np.append(old, [0, size])
    quantile = scipy.stats.t.ppf(0.975, row["prompts"] - 1)
    for ratio, is_held in ((low + 1e-6, True), (high - 1e-6, True), (low - 1e-6, False), (high + 1e-6, False)):
        rest = new - ratio * old
        assert (abs(rest.mean()) < quantile * rest.std() / np.sqrt(len(rest))) == is_held
    assert (low < 1 < high) == (row["low"] < 0 < row["high"])


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
