"""fit_strengths, compare_strengths and rank_judged: Bradley–Terry strengths of judged runs."""

import itertools
import math

import numpy as np
import pytest
import scipy
from judge_kit import PLACES, give_judge, vote

SEEDS = range(2)
WORDS = {1.0: ("first", "second"), 0.0: ("second", "first"), 0.5: ("first", "first"), 0.25: ("tie", "first")}
"""Value of a to its verdicts in both orders."""


def give_games(store, games):
    """Games are (run a, run b, prompt, value of a); one judge for each pair of runs."""
    for (a, b), rows in itertools.groupby(sorted(games), key=lambda game: game[:2]):
        votes = [
            vote(item, word, judge=f"judge {a}{b}", run=a, other=b, first=first)
            for _, _, item, value in rows
            for first, word in zip("ab", WORDS[value], strict=True)
        ]
        give_judge(store, votes, values=PLACES)
    return list({f"judge {a}{b}" for a, b, *_ in games})


def rank(store, judges):
    return {row["run_id"]: row for row in store.read("from rank_judged(?)", judges)}


def fit_with_scipy(games):
    """Strengths and their covariance: likelihood by L-BFGS, information by NumPy's inverse, sandwich over prompts."""
    runs = sorted({run for game in games for run in game[:2]})
    met = sorted({tuple(sorted(game[:2])) for game in games})
    rows = [(runs.index(a), runs.index(b), prompt, value, 1.0) for a, b, prompt, value in games]
    rows += [(runs.index(a), runs.index(b), f"prior {a}{b}{y}", y, 0.5) for a, b in met for y in (0.0, 1.0)]
    a, b, value, weight = (np.array([row[k] for row in rows]) for k in (0, 1, 3, 4))

    def loss(strength):
        d = strength[a] - strength[b]
        return np.sum(weight * (np.logaddexp(0, d) - value * d)) + np.sum(strength) ** 2

    found = scipy.optimize.minimize(loss, np.zeros(len(runs)), tol=1e-14)
    strength = found.x - found.x.mean()
    p = 1 / (1 + np.exp(strength[b] - strength[a]))
    sides = np.zeros((len(rows), len(runs)))
    sides[np.arange(len(rows)), a], sides[np.arange(len(rows)), b] = 1, -1
    inverse = np.linalg.pinv(sides.T @ (sides * (weight * p * (1 - p))[:, None]))
    scores: dict[str, np.ndarray] = {}
    for row, side, gap in zip(rows, sides, np.sqrt(weight) * (value - p), strict=True):
        scores[row[2]] = scores.get(row[2], 0) + side * gap
    prompts = len({game[2] for game in games})
    middle = sum(np.outer(score, score) for score in scores.values()) * prompts / (prompts - 1)
    return runs, strength, inverse @ middle @ inverse, prompts


def draw_games(dice, strengths, prompts):
    games = []
    for a, b in itertools.combinations(sorted(strengths), 2):
        p = 1 / (1 + math.exp(strengths[b] - strengths[a]))
        for prompt in range(prompts):
            value = dice.choice([0.5, 0.25]) if dice.random() < 0.3 else float(dice.random() < p)
            games.append((a, b, f"p{prompt}", float(value)))
    return games


@pytest.mark.parametrize("seed", SEEDS)
def test_rank_judged_strengths_are_those_of_scipys_maximum_likelihood(store, seed):
    games = draw_games(np.random.default_rng(seed), {"a": 0.9, "b": 0.4, "c": 0.0, "d": -1.5}, 25)
    if seed:  # a pair that never met
        games = [game for game in games if game[:2] != ("a", "d")]
    judges = give_games(store, games)
    runs, strength, covariance, prompts = fit_with_scipy(games)
    t = scipy.stats.t(prompts - 1)
    found = rank(store, judges)
    for i, run in enumerate(runs):
        half = t.ppf(0.975) * math.sqrt(covariance[i, i])
        assert found[run]["strength"] == pytest.approx(strength[i], abs=1e-5)
        assert found[run]["low"] == pytest.approx(strength[i] - half, abs=1e-4)
        assert found[run]["high"] == pytest.approx(strength[i] + half, abs=1e-4)
        mine = [value if game_a == run else 1 - value for game_a, b, _, value in games if run in (game_a, b)]
        assert found[run]["won_share"] == pytest.approx(np.mean(mine))
        assert (found[run]["comparisons"], found[run]["prompts"]) == (len(mine), 25)
    pairs = store.read("from compare_strengths(?)", judges)
    expected = []
    for row in pairs:
        i, j = runs.index(row["candidate"]), runs.index(row["baseline"])
        error = math.sqrt(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j])
        assert row["standard_error"] == pytest.approx(error, abs=1e-5)
        assert row["difference"] == pytest.approx(strength[i] - strength[j], abs=1e-5)
        p = 2 * t.sf(abs(strength[i] - strength[j]) / error)
        assert row["p_value"] == pytest.approx(p, rel=1e-3)
        expected.append(row["p_value"])
    last = 0.0
    for place, row in enumerate(sorted(pairs, key=lambda row: row["p_value"])):
        last = max(last, min(1.0, row["p_value"] * (len(pairs) - place)))
        assert row["holm_p"] == pytest.approx(last)
        assert row["verdict"] == ("unclear" if last > 0.05 else "better" if row["difference"] > 0 else "worse")


def test_rank_judged_of_two_runs_is_the_logarithm_of_odds_with_half_a_game_each(store):
    """Haldane's and Anscombe's estimate, and Gart's standard error."""
    judges = give_games(store, [("a", "b", f"p{i}", float(i < 30)) for i in range(40)])
    (row,) = store.read("from compare_strengths(?)", judges)
    assert row["difference"] == pytest.approx(math.log(30.5 / 10.5))
    assert row["standard_error"] == pytest.approx(math.sqrt((1 / 30.5 + 1 / 10.5) * 40 / 39))
    assert rank(store, judges)["a"]["strength"] == pytest.approx(math.log(30.5 / 10.5) / 2)
    assert (row["verdict"], rank(store, judges)["a"]["is_winner"]) == ("better", True)


@pytest.mark.parametrize(("prompts", "verdict"), [(4, "too_few"), (6, "unclear"), (40, "better")])
def test_rank_judged_of_a_run_that_always_won_is_finite(store, prompts, verdict):
    judges = give_games(store, [("a", "b", f"p{i}", 1.0) for i in range(prompts)])
    found = rank(store, judges)
    assert found["a"]["strength"] == pytest.approx(math.log(2 * prompts + 1) / 2)
    assert (found["a"]["low"] is None) == (prompts < 5)
    (row,) = store.read("from compare_strengths(?)", judges)
    assert row["verdict"] == verdict
    assert found["a"]["is_winner"] == (verdict == "better")


def test_rank_judged_cancels_a_position_bias(store):
    """A judge that always names the first place gives all runs the same strength, and no winner."""
    judges = give_games(store, [(a, b, f"p{i}", 0.5) for a, b in ("xy", "xz", "yz") for i in range(50)])
    found = rank(store, judges)
    assert [row["strength"] for row in found.values()] == pytest.approx([0, 0, 0])
    assert {(row["best_rank"], row["worst_rank"], row["is_winner"]) for row in found.values()} == {(1, 3, False)}


def test_rank_judged_leaves_out_pairs_judged_in_one_order(store):
    votes = [vote(f"p{i}", "first", run="a", other="b", first=first) for i in range(9) for first in "ab"]
    give_judge(store, [*votes, vote("one order", "first", run="a", other="b", first="a")], values=PLACES)
    found = rank(store, ["judge"])
    assert (found["a"]["comparisons"], found["a"]["strength"], found["a"]["won_share"]) == (9, pytest.approx(0), 0.5)


def test_rank_judged_takes_pairs_in_either_direction_and_averages_judges(store):
    for judge, a, b, word in (("one", "a", "b", "first"), ("two", "a", "b", "second"), ("three", "b", "a", "tie")):
        votes = [
            vote(f"p{i}", (word, {"first": "second", "second": "first", "tie": "tie"}[word])[first == "b"],
                 judge=judge, run=a, other=b, first=first)
            for i in range(6) for first in "ab"
        ]  # fmt: skip
        give_judge(store, votes, values=PLACES)
    assert rank(store, ["one", "two"])["a"]["comparisons"] == 6
    assert rank(store, ["one", "two", "three"])["a"]["comparisons"] == 12
    assert rank(store, ["one", "two", "three"])["a"]["strength"] == pytest.approx(0)
    assert rank(store, ["one", "three"])["a"]["strength"] > 0.1


def test_rank_judged_has_no_strength_when_comparisons_do_not_link_all_runs(store):
    games = [(a, b, f"p{i}", float(i < 5)) for a, b in ("ab", "cd") for i in range(9)]
    found = rank(store, give_games(store, games))
    assert {(row["strength"], row["low"], row["best_rank"], row["worst_rank"]) for row in found.values()} == {
        (None, None, 1, 4)
    }
    linked = rank(store, give_games(store, [*games, *(("b", "c", f"q{i}", 1.0) for i in range(9))]))
    assert None not in {row["strength"] for row in linked.values()}


def test_rank_judged_names_models(store):
    store.given("runs", {"run_id": "a", "model": "some/model"})
    found = rank(store, give_games(store, [("a", "b", "p", 1.0)]))
    assert {run: row["model"] for run, row in found.items()} == {"a": "some/model", "b": None}


def test_rank_judged_is_empty_without_pairs(store):
    give_judge(store, [vote("p", "correct")])
    assert rank(store, ["judge", "nobody"]) == {}
