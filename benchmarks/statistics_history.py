"""Part `history` of `benchmarks.statistics`: nights judged by the own history of each prompt.

A schedule is ten nights and 60 that are judged. By default, 15% of prompts are uncertain; of the others, 75% are right
in every night and 25% wrong. The generators share no code and no model with the test, apart from effects of nights.

- rates: uncertain prompts are wrong at uniform rates, at rates from Beta(0.5, 4), or at 3% and 50%; of “all uncertain”
  prompts at rates from Beta(0.15, 0.35); at a temperature, at rates from Beta(0.6, 1.4).
- effects: on the log odds of the uncertain prompts, of a standard deviation.
- drift: their log odds rise by 1 over the schedule. Walk: each moves by 0.1 a night. For good: 0.01% of all prompts
  turn from right to wrong or back every night.
- groups: of ten prompts, unknown to the test, or clusters, known to it, with latent normals that correlate by 0.5.
- another way: in 20% of nights, 3% of all prompts have other answers, as after another batch or kernel.

A fault begins after 20 nights, and turns a share of all prompts from right to wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtri

from assayline.stats.nights import FEWEST_NIGHTS, judge_nights, name_lost
from assayline.stats.pairs import describe_pairs
from assayline.stats.worse import NIGHTS, find_level
from benchmarks.statistics_accuracy import compare

Dice = np.random.Generator
Row = dict[str, Any]
SCHEDULES = 400
MANY = 2000
FAULTS = 200
"""Schedules that have a fault."""
BATCH = 50
PAST_NIGHTS = 20
LOSSES = (0.005, 0.01, 0.02)
LEVEL = find_level(NIGHTS, tests=2)
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A generator of schedules."""

    rates: str = "uniform"
    prompts: int = 1000
    effect: float = 0.0
    correlation: float = 0.0
    is_heavy: bool = False
    episode: int = 0
    drift: float = 0.0
    walk: float = 0.0
    for_good: float = 0.0
    group: int = 1
    is_cluster: bool = False
    missing: float = 0.0
    samples: int = 1
    other_way: float = 0.0
    schedules: int = SCHEDULES


CELLS = {
    "uniform": Cell(schedules=MANY),
    "uniform, 200 prompts": Cell(prompts=200, schedules=MANY),
    "uniform, 2,000 prompts": Cell(prompts=2000),
    "Beta(0.5, 4)": Cell(rates="low"),
    "Beta(0.5, 4), 200 prompts": Cell(rates="low", prompts=200),
    "3% and 50%": Cell(rates="two"),
    "all uncertain": Cell(rates="all"),
    "temperature, four samples": Cell(rates="temperature", samples=4),
    "effects, SD 0.5": Cell(rates="low", effect=0.5),
    "effects, SD 1": Cell(rates="low", effect=1.0),
    "effects, AR(1) 0.9": Cell(rates="low", effect=0.5, correlation=0.9),
    "effects, heavy tails": Cell(rates="low", effect=0.5, is_heavy=True, schedules=MANY),
    "effects, episodes of 14 nights": Cell(rates="low", effect=0.7, episode=14),
    "drift": Cell(drift=1.0),
    "drift, Beta(0.5, 4)": Cell(rates="low", drift=1.0),
    "walk": Cell(walk=0.1),
    "groups": Cell(rates="low", group=10),
    "clusters": Cell(rates="low", group=10, is_cluster=True),
    "missing, 5% and half of some nights": Cell(missing=0.05),
    "for good": Cell(for_good=1e-4, schedules=MANY),
    "another way": Cell(other_way=0.2, schedules=MANY),
}


def draw_rates(dice: Dice, cell: Cell, schedules: int) -> np.ndarray:
    """Draw the probability of a wrong answer: schedules × prompts."""
    shape = (schedules, cell.prompts)
    if cell.rates in ("all", "temperature"):
        return dice.beta(*((0.15, 0.35) if cell.rates == "all" else (0.6, 1.4)), shape)
    certain = (dice.random(shape) < 0.25).astype(float)
    if cell.rates == "two":
        uncertain = dice.choice([0.03, 0.5], size=shape)
    else:
        uncertain = dice.beta(0.5, 4, shape) if cell.rates == "low" else dice.random(shape)
    return np.where(dice.random(shape) < 0.15, uncertain, certain)


def draw_nights(dice: Dice, cell: Cell, schedules: int, nights: int) -> np.ndarray:
    """Draw lost scores: schedules × nights × prompts, NaN if missing."""
    shape = (schedules, cell.prompts)
    rates = draw_rates(dice, cell, schedules)
    odds = logit(np.clip(rates, TINY, 1 - TINY))
    noise = dice.standard_t(4, (schedules, nights)) / 2**0.5 if cell.is_heavy else dice.normal(size=(schedules, nights))
    for night in range(1, nights):
        noise[:, night] = cell.correlation * noise[:, night - 1] + (1 - cell.correlation**2) ** 0.5 * noise[:, night]
    effects = cell.effect * noise + cell.drift * np.linspace(0, 1, nights)
    if cell.episode:
        effects += cell.effect * (np.cumsum(dice.random((schedules, nights)) < 1 / cell.episode, axis=1) % 2)
    turned, turned_rate = dice.random(shape) < 0.03, 0.9 * (dice.random(shape) < 0.5)
    lost = np.empty((schedules, nights, cell.prompts), np.float32)
    for night in range(nights):
        odds += cell.walk * dice.normal(size=shape) if cell.walk else 0
        if cell.for_good:
            odds = np.where(dice.random(shape) < cell.for_good, -odds, odds)
        now = expit(odds + effects[:, night, None])
        if cell.other_way:
            now = np.where(turned & (dice.random((schedules, 1)) < cell.other_way), 0.05 + turned_rate, now)
        if cell.group > 1:
            common = np.repeat(dice.normal(size=(schedules, cell.prompts // cell.group)), cell.group, axis=1)
            lost[:, night] = (common + dice.normal(size=shape)) / 2**0.5 < ndtri(now)
        else:
            lost[:, night] = dice.binomial(cell.samples, now) / cell.samples
    if cell.missing:
        half = dice.random((schedules, nights, 1)) < 0.1
        lost[dice.random(lost.shape) < np.where(half, 0.5, cell.missing)] = np.nan
    return lost


def lose(dice: Dice, lost: np.ndarray, share: float) -> np.ndarray:
    """Turn a share of all prompts from right to wrong in the last night; return schedules × prompts, which ones."""
    last = lost[:, -1]
    order = np.where(last < 1, dice.random(last.shape), np.where(np.isnan(last), 3, 2))
    chosen = order.argsort(axis=1).argsort(axis=1) < round(share * last.shape[1])
    last[chosen] = 1
    return chosen


def measure_history(dice: Dice) -> Iterator[Row]:
    """Periods of 60 nights with a false alarm; faults found in their first night; named prompts that are lost."""
    for (name, cell), own in zip(CELLS.items(), dice.spawn(len(CELLS)), strict=True):
        yield {"prompts": name, "schedules": cell.schedules, **measure_cell(own, cell)}


def measure_cell(dice: Dice, cell: Cell) -> Row:
    """Return the shares of one generator."""
    cluster = np.arange(cell.prompts) // cell.group if cell.is_cluster else None
    false, named, right = [], 0, 0
    found: dict[float, list[bool]] = {share: [] for share in LOSSES}
    by_pairs: list[bool] = []
    for start in range(0, cell.schedules, BATCH):
        lost = draw_nights(dice, cell, BATCH, FEWEST_NIGHTS + NIGHTS)
        false += (judge_nights(lost, cell.samples, cluster).p_value <= LEVEL).any(axis=1).tolist()
        for share in LOSSES if start < FAULTS else ():
            night = lost[:, : PAST_NIGHTS + 1].copy()
            chosen = lose(dice, night, share)
            judged = judge_nights(night, cell.samples, cluster)
            is_found = judged.p_value[:, -1] <= LEVEL
            found[share] += is_found.tolist()
            past = np.nanmean(night[:, :-1], axis=1)
            for place in np.flatnonzero(is_found):
                names, _, _ = name_lost(night[place, -1], past[place], judged.rate[place], cell.samples)
                named, right = named + int(names.sum()), right + int((names & chosen[place]).sum())
            if share == 0.01 and not cell.missing:
                rows = compare(np.asarray(night[:, -2] - night[:, -1], float))
                by_pairs += [describe_pairs(row, 0.0).judge(2 * LEVEL) == "fail" for row in rows]
    losses = {f"{share:.1%} lost": float(np.mean(found[share])) for share in LOSSES}
    pairs = float(np.mean(by_pairs)) if by_pairs else None
    precision = right / named if named else None
    return {"false alarm": float(np.mean(false)), **losses, "1.0% lost, by pairs": pairs, "named are lost": precision}
