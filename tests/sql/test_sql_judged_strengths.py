"""rank_judged_runs: Bradley–Terry strengths of judged runs."""

import itertools
import math

import numpy as np
import pytest
import scipy
from judge_kit import PLACES, give_judge, vote

from assayline.comparison.board import rank_judged_runs
from assayline.stats.strengths import rank_judged

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
    return {row["run_id"]: row for row in rank_judged_runs(store.connection, "rubric", judges)}


def fit_with_scipy(games):
    """Strengths and their covariance: likelihood by L-BFGS, each prompt left out by a step of Newton's method."""
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
    gaps = sides * (np.sqrt(weight) * (value - p))[:, None]
    center = np.full((len(runs), len(runs)), 1 / len(runs))
    information = np.linalg.pinv(inverse) + center
    prompts = sorted({game[2] for game in games})
    covariance = np.zeros((len(runs), len(runs)))
    for prompt in {row[2] for row in rows}:
        of = [row[2] == prompt for row in rows]
        rest = information - (sides[of].T @ (sides[of] * (p * (1 - p))[of, None]) if prompt in prompts else 0)
        move = np.linalg.solve(rest, gaps[of].sum(0))
        covariance += np.outer(move, move) * ((len(prompts) - 1) / len(prompts) if prompt in prompts else 1)
    return runs, strength, covariance, len(prompts)


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
    p = {}
    for i, j in itertools.combinations(range(len(runs)), 2):
        error = math.sqrt(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j])
        p[i, j] = 2 * t.sf(abs(strength[i] - strength[j]) / error)
    last, above = 0.0, dict.fromkeys(runs, 0)
    for place, ((i, j), one) in enumerate(sorted(p.items(), key=lambda pair: pair[1])):
        last = max(last, min(1.0, one * (len(p) - place)))
        if last <= 0.05:
            above[runs[i if strength[i] < strength[j] else j]] += 1
    assert {run: row["best_rank"] - 1 for run, row in found.items()} == above


def test_rank_judged_of_two_runs_is_the_logarithm_of_odds_with_half_a_game_each(store):
    """Haldane's and Anscombe's estimate."""
    judges = give_games(store, [("a", "b", f"p{i}", float(i < 30)) for i in range(40)])
    found = rank(store, judges)["a"]
    assert found["strength"] == pytest.approx(math.log(30.5 / 10.5) / 2)
    assert found["is_winner"] and found["low"] > 0
    query = "select kind, names, task, run_id, value, is_winner from ranking order by run_id limit 1"
    assert store.connection.execute(query).fetchall() == [
        ("judged pairs", judges, "rubric", "a", found["strength"], True)
    ]


@pytest.mark.parametrize(("share", "most"), [(0.65, 0.1), (1.0, 0.0)])
def test_rank_judged_names_no_winner_from_a_length_bias(share, most):
    """Equal answers, and a judge that takes the longer one in 40% of verdicts; blind to length, 80% have a winner."""
    dice = np.random.default_rng(5)
    won = {True: 0, False: 0}
    for _ in range(60):
        longer = np.where(dice.random(300) < share, 1.0, -1.0)
        value = sum(np.where(dice.random(300) < 0.4, longer > 0, dice.random(300) < 0.5) for _ in range(2)) / 2
        first = np.zeros(300, int)
        for knows in won:
            found = rank_judged(first, first + 1, np.arange(300), value, longer * knows, 2)
            won[knows] += bool(found["is_winner"].any())
    assert won[True] <= 60 * most and won[False] >= 40


@pytest.mark.parametrize(("prompts", "verdict"), [(4, "too_few"), (6, "unclear"), (40, "better")])
def test_rank_judged_of_a_run_that_always_won_is_finite(store, prompts, verdict):
    judges = give_games(store, [("a", "b", f"p{i}", 1.0) for i in range(prompts)])
    found = rank(store, judges)
    assert found["a"]["strength"] == pytest.approx(math.log(2 * prompts + 1) / 2)
    assert (found["a"]["low"] is None) == (prompts < 5)
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
