"""Limits by past values: rates equal to the truth in simulated kinds, and the command on published shapes."""

import json

import numpy as np
import pytest
from scipy import stats

from assayline.flows.cli import run
from assayline.stats import limits

DICE = np.random.default_rng(20_261_128)
DRAWS = 1_500


def draw_dependent(n: int) -> np.ndarray:
    series = DICE.normal(size=n)
    for place in range(1, n):
        series[place] = 0.5 * series[place - 1] + 0.75**0.5 * series[place]
    return series


def draw_episodes(n: int) -> np.ndarray:
    return np.where(DICE.random(n) < 0.05, DICE.normal(-4, 1, n), DICE.normal(size=n))


KINDS = {
    "normal": (lambda n: DICE.normal(size=n), stats.norm.cdf),
    "heavy tails": (lambda n: DICE.standard_t(3, n), lambda x: stats.t.cdf(x, 3)),
    "skewed": (lambda n: -DICE.lognormal(0, 0.5, n), lambda x: stats.lognorm.sf(-x, 0.5)),
    "scores of 200 prompts": (
        lambda n: DICE.binomial(200, 0.85, n) / 200,
        lambda x: stats.binom.cdf(np.ceil(x * 200 - 1e-9) - 1, 200, 0.85),
    ),
    "dependent": (draw_dependent, stats.norm.cdf),
    "episodes": (draw_episodes, lambda x: 0.95 * stats.norm.cdf(x) + 0.05 * stats.norm.cdf(x + 4)),
}


@pytest.mark.parametrize("n", [10, 30, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_rates_of_a_limit_and_limits_of_a_rate_are_those_of_the_truth(kind, n):
    draw, below = KINDS[kind]
    limit = float(np.quantile(np.concatenate([draw(1_000) for _ in range(20)]), 0.1))
    truth = float(below(limit))
    found = [limits.find_false_alarms(draw(n), limit) for _ in range(DRAWS)]
    assert np.mean([one.value for one in found]) == pytest.approx(truth, abs=0.01)
    assert np.mean([one.low <= truth <= one.high for one in found]) > (0.87 if n == 10 else 0.93)
    if n > 10:
        future = [below(limits.find_limit(draw(n), 0.1)) for _ in range(DRAWS)]
        assert np.mean(future) == pytest.approx(0.1, abs=0.02 if kind == "dependent" else 0.01)


def write_scores(path, right: list[float]) -> str:
    path.write_text("date,score\n" + "".join(f"2026-{at},{score}\n" for at, score in enumerate(right)))
    return str(path)


def draw_scores() -> list[float]:
    """Return 61 scores, of which 12 are below 0.85 and 2 below 0.84."""
    low = [0.832, 0.837, *np.linspace(0.8405, 0.8495, 10), *np.linspace(0.851, 0.874, 49)]
    return list(np.random.default_rng(3).permutation(low))


def test_noise_answers_for_a_column_and_its_exit_code_follows_the_rate(tmp_path, capsys):
    path = write_scores(tmp_path / "ci.csv", draw_scores())
    assert run("noise", ["--values", path, "--column", "score", "--limit", "0.85", "--prompts", "1319"]) == 0
    said = capsys.readouterr().out
    assert "fails in 19.7% (95%: 11.6% to 31.3%), by these 61 values" in said
    assert "A limit of 0.84 fails in 3.3%" in said and "mean of 4 runs" in said and "instead of 1,319" in said
    for rate, code in (("0.05", 1), ("0.15", 0)):
        assert run("noise", ["--values", path, "--limit", "0.85", "--max-false-alarms", rate]) == code
    capsys.readouterr()
    slow = write_scores(tmp_path / "slow.csv", [-score for score in draw_scores()])
    assert run("noise", ["--values", slow, "--limit", "-0.85", "--lower-is-better"]) == 0
    assert "fails in 19.7%" in capsys.readouterr().out
    assert run("noise", ["--values", path, "--column", "date"]) == 2
    assert "--column" in capsys.readouterr().err


def test_noise_counts_the_values_after_a_shift_and_widens_for_dependence(tmp_path, capsys):
    path = tmp_path / "values.json"
    path.write_text(
        json.dumps([*np.random.default_rng(1).normal(10, 1, 41), *np.random.default_rng(2).normal(30, 1, 20)])
    )
    assert run("noise", ["--values", str(path), "--limit", "28"]) == 0
    said = capsys.readouterr().out
    assert "The last 20 of 61 values are another level" in said and "by these 20 values" in said
    dependent = [float(np.sin(place / 3)) for place in range(40)]
    path.write_text(json.dumps(dependent))
    assert run("noise", ["--values", str(path), "--limit", "-0.9"]) == 0
    assert "Neighbors depend on each other" in capsys.readouterr().out
