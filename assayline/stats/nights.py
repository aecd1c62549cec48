"""Every prompt its own control: whether a night loses more answers than the records of its prompts predict.

The null is that all nights of a prompt are equal, except for an effect of the night on the log odds of all prompts.
Given how often a prompt was wrong in all, its wrong answers then lie on any of its nights, so the distribution of a
night's statistic is known without estimated rates. The statistic is Σ v over wrong answers: v = log(1 − ε + ε / q),
the log-likelihood ratio of a loss of ε of all prompts. q is the probability of a wrong answer given the prompt's other
nights, by a mixture of binomials over all prompts (Laird 1978, EM). The effect of a night is estimated from prompts
that are sometimes wrong, and shrunk by its variance over the nights.

Every night is judged by the nights before it, as r* of the saddlepoint approximation (Barndorff-Nielsen 1986), which is
about normal. By how much r* of past nights spreads beyond that is what the null leaves out: p is that of tonight's r*
by t, with their mean, if above 0, and their spread, if above 1. The r* of a night's right answers, if large, is
subtracted: such a night answers differently rather than worse.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assayline.stats.clusters import Floats, Places

FEWEST_NIGHTS = 10
"""Past nights that the test needs."""
LOST = 0.01
"""ε: the share of lost prompts for which the statistic is best."""
PRIOR_NIGHTS = 20
"""Weight, in nights, of a spread of r* of 1."""
PRIOR_EFFECT = (3.0, 0.15)
"""Weight, in nights, of the prior variance of their effects, and that variance times the weight."""
STEADY = 0.1
"""Maximum share of wrong nights of a prompt that says nothing about the effect of a night."""
MUCH_GAINED = 2.0
"""r* of right answers above which it counts against that of wrong ones: a night that answers differently, not worse."""
MOST_EXPECTED = 0.1
"""Share of the named prompts that may be expected by chance."""
RECENT_NIGHTS = 5
"""Nights in which a prompt can become flaky."""
ODDS = np.concatenate([[-11.5, -9.2, -8.1], np.linspace(-7, 7, 30), [8.1, 9.2, 11.5]])
RATES = 1 / (1 + np.exp(-ODDS))
"""Rates of the mixture."""
EM_STEPS = 15
NEWTON_STEPS = 25
TINY = 1e-12


@dataclass(frozen=True)
class Nights:
    """Nights of schedules, each judged by the nights before it."""

    p_value: Floats
    """Two-sided p of the null, 1 if not more is lost than expected: schedules × nights. NaN for too few past nights."""
    rate: Floats
    """Probability of a wrong answer to each prompt in the last night, by its past and the effect of the night."""


def judge_nights(lost: Floats, samples: int = 1, cluster: Places | None = None, allowed_share: float = 0.0) -> Nights:
    """Judge nights in their order: schedules × nights × prompts of lost scores from 0 to 1, NaN if missing.

    A score is the mean of `samples`. `cluster` has the place of each prompt's cluster. In the last night,
    `allowed_share` of the asked prompts may be lost: the most surprising ones do not count.
    """
    r, rate = _follow(lost, samples, cluster, allowed_share)
    gained, _ = _follow(1 - lost, samples, cluster, 0.0)
    net = r - np.where(gained > MUCH_GAINED, gained, 0)
    p_value = np.full(lost.shape[:2], np.nan)
    for night in range(FEWEST_NIGHTS, lost.shape[1]):
        p_value[:, night] = _compare(r[:, : night - 1], net[:, night - 1])
    return Nights(p_value, rate)


def _follow(lost: Floats, samples: int, cluster: Places | None, allowed_share: float) -> tuple[Floats, Floats]:
    """Return r* of every night from the second on, and the rates of prompts in the last one."""
    is_asked = np.isfinite(lost)
    lost = np.where(is_asked, lost, 0.0)
    schedules, nights, _ = lost.shape
    wrong, asked = lost[:, 0].copy(), is_asked[:, 0].astype(float)
    mixture = np.full((schedules, len(RATES)), 1 / len(RATES))
    effects, weights = np.full(schedules, PRIOR_EFFECT[1]), np.full(schedules, PRIOR_EFFECT[0])
    r, rate = np.zeros((schedules, nights - 1)), wrong
    for night in range(1, nights):
        if night == nights - 1:
            rate = _expect(mixture, wrong, asked)
        wrong += lost[:, night]
        asked += is_asked[:, night]
        group, records = _group(wrong, asked)
        mixture = _fit(mixture, records, _count(group, len(records)))
        worth = np.log1p(LOST * (1 / _expect_records(mixture, np.maximum(0, records - 1)) - 1))
        prompts = _count(group, len(records), is_asked[:, night])
        share = records[:, 0] / np.maximum(1, records[:, 1])
        seen = _count(group, len(records), lost[:, night])
        effect, estimate, information = _find_effect(records, prompts, seen, np.maximum(effects / weights, TINY))
        known = np.minimum(1, information / 10)
        effects += known * (np.clip(estimate, -4, 4) ** 2 - 1 / np.maximum(1, information))
        weights += known
        own_worth = np.take_along_axis(worth, group, axis=1)
        surprise = own_worth * lost[:, night]
        if night == nights - 1 and allowed_share:
            order = surprise.argsort(axis=1)[:, ::-1].argsort(axis=1)
            surprise *= order >= np.floor(allowed_share * is_asked[:, -1].sum(axis=1, keepdims=True))
        tilted = _tilt(share, effect)
        r[:, night - 1] = _find_r(surprise.sum(axis=1), worth, tilted, prompts, samples)
        if cluster is not None:
            r[:, night - 1] /= np.sqrt(_find_design(lost[:, : night + 1], is_asked[:, : night + 1], own_worth, cluster))
        if night == nights - 1:
            rate = _tilt(rate, effect)
    return r, rate


def _compare(past: Floats, last: Floats) -> Floats:
    """Return the two-sided p of the last r* of each row by those before; 1 below their mean."""
    from scipy.special import stdtr

    n = past.shape[1]
    mean = past.mean(axis=1)
    degrees = PRIOR_NIGHTS + n - 1
    spread = np.maximum(1, (PRIOR_NIGHTS + ((past - mean[:, None]) ** 2).sum(axis=1)) / degrees)
    t = (last - np.maximum(0, mean)) / np.sqrt(spread * (1 + 1 / n))
    p_value: Floats = np.minimum(1, 2 * stdtr(degrees, -t))
    return p_value


def name_lost(
    lost: Floats, past_share: Floats, rate: Floats, samples: int = 1
) -> tuple[npt.NDArray[np.bool_], float, float]:
    """Return which prompts of a night are lost, the share of wrong nights in their past, and how many are expected.

    They are wrong in this night, and were wrong in at most that share of their past: the largest share for which at
    most MOST_EXPECTED of them are expected, else the one for which the fewest are. NaN is a missing score.
    """
    is_wrong = lost >= 1 - TINY
    shares, is_asked = np.unique(past_share[is_wrong]), np.isfinite(lost)
    if not len(shares):
        return is_wrong, 0.0, 0.0
    below = past_share <= shares[:, None]
    expected = (below * np.where(is_asked, rate**samples, 0)).sum(axis=1)
    ratio = (expected + 0.5) / (below & is_wrong).sum(axis=1)
    few = np.flatnonzero(ratio <= MOST_EXPECTED)
    chosen = few[-1] if len(few) else int(ratio.argmin())
    return below[chosen] & is_wrong, float(shares[chosen]), float(expected[chosen])


def find_flaky(lost: Floats) -> npt.NDArray[np.bool_]:
    """Return which prompts (of nights × prompts) are wrong in some of the last nights only, and in none before."""
    recent, before = lost[-RECENT_NIGHTS:] > 0.5, lost[:-RECENT_NIGHTS]
    asked = np.isfinite(before).sum(axis=0)
    times = recent.sum(axis=0)
    is_flaky: npt.NDArray[np.bool_] = (
        (asked >= FEWEST_NIGHTS) & ((before > 0.5).sum(axis=0) == 0) & (times >= 2) & (times < RECENT_NIGHTS)
    )
    return is_flaky


def _group(wrong: Floats, asked: Floats) -> tuple[Places, Floats]:
    """Return the place of each prompt's record, and the records: wrong nights and asked nights."""
    codes, group = np.unique(np.rint(100 * wrong) * 10_000 + asked, return_inverse=True)
    return group.reshape(wrong.shape), np.stack([codes // 10_000 / 100, codes % 10_000], axis=1)


def _count(group: Places, records: int, weight: Floats | None = None) -> Floats:
    """Return how many prompts of each schedule have each record."""
    rows = len(group)
    flat = (group + records * np.arange(rows)[:, None]).ravel()
    counted = np.bincount(flat, None if weight is None else weight.ravel(), rows * records)
    return counted.reshape(rows, records).astype(float)


def _likelihoods(records: Floats) -> Floats:
    wrong, asked = records[:, :1], records[:, 1:]
    likelihoods: Floats = np.exp(wrong * np.log(RATES) + (asked - wrong) * np.log1p(-RATES))
    return likelihoods


def _fit(mixture: Floats, records: Floats, prompts: Floats) -> Floats:
    """Return the mixture of rates after some steps of EM."""
    likelihoods = _likelihoods(records)
    for _ in range(EM_STEPS):
        mixture = mixture * ((prompts / (mixture @ likelihoods.T + 1e-300)) @ likelihoods)
        mixture = 0.999 * mixture / mixture.sum(axis=1, keepdims=True) + 0.001 / len(RATES)
    return mixture


def _expect_records(mixture: Floats, records: Floats) -> Floats:
    """Return the rate that a record lets expect: schedules × records."""
    likelihoods = _likelihoods(records)
    rates: Floats = (mixture @ (likelihoods * RATES).T) / (mixture @ likelihoods.T + 1e-300)
    return np.clip(rates, RATES[0], RATES[-1])


def _expect(mixture: Floats, wrong: Floats, asked: Floats) -> Floats:
    group, records = _group(wrong, asked)
    return np.take_along_axis(_expect_records(mixture, records), group, axis=1)


def _tilt(share: Floats, effect: Floats) -> Floats:
    """Return probabilities with the log odds moved by the effect of each schedule's night."""
    factor = np.exp(effect)[:, None]
    tilted: Floats = share * factor / (1 - share + share * factor)
    return tilted


def _find_effect(records: Floats, prompts: Floats, seen: Floats, variance: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the effect of a night, most probable for this variance of effects, its estimate alone and information."""
    wrong, asked = records.T
    share = wrong / np.maximum(1, asked)
    told = (wrong > np.maximum(1, STEADY * asked)) & (wrong < asked)
    prompts, seen, effect = prompts * told, (seen * told).sum(axis=1), np.zeros(len(prompts))
    estimate = information = effect
    for step in range(8):
        now = _tilt(share, effect)
        over, spread = seen - (prompts * now).sum(axis=1), (prompts * now * (1 - now)).sum(axis=1)
        if not step:
            estimate, information = over / np.maximum(spread, TINY), spread
        move = (over - effect / variance) / (spread + 1 / variance)
        effect = np.clip(effect + np.clip(move, -1, 1), -4, 4)
    return effect, estimate, information


def _find_r(total: Floats, worth: Floats, share: Floats, prompts: Floats, samples: int) -> Floats:
    """Return r* of the totals of a sum over prompts: `worth` times a share of binomial `samples` with the `share`."""
    worth, trials = worth / samples, prompts * samples
    most = 1 / worth.max(axis=1)
    theta = np.zeros(len(total))

    def cumulate(theta: Floats) -> tuple[Floats, Floats, Floats]:
        raised = share * np.exp(theta[:, None] * worth)
        now = raised / (1 - share + raised)
        first, second = trials * worth * now, trials * worth**2 * now * (1 - now)
        return (trials * np.log(1 - share + raised)).sum(axis=1), first.sum(axis=1), second.sum(axis=1)

    _, mean, variance = cumulate(theta)
    for _ in range(NEWTON_STEPS):
        _, first, second = cumulate(theta)
        move = np.clip((total - first) / np.maximum(second, TINY), -most, most)
        theta = np.clip(theta + move, -30 * most, 30 * most)
    height, _, second = cumulate(theta)
    w = np.sign(theta) * np.sqrt(np.maximum(0, 2 * (theta * total - height)))
    u = theta * np.sqrt(second)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = w + np.log(u / w) / w
    plain = (total - mean) / np.sqrt(np.maximum(variance, TINY))
    return np.where(total < mean, np.maximum(w, plain), np.where(np.isfinite(r) & (w > 0.05), r, plain))


def _find_design(lost: Floats, is_asked: Places, worth: Floats, cluster: Places) -> Floats:
    """Return by how much clusters raise the variance of a night's sum, at least 1."""
    mean = lost.sum(axis=1) / np.maximum(1, is_asked.sum(axis=1))
    apart = (lost - mean[:, None]) * is_asked * worth[:, None]
    order = np.argsort(cluster, kind="stable")
    starts = np.flatnonzero(np.diff(cluster[order], prepend=-1))
    together = np.add.reduceat(apart[..., order], starts, axis=-1)
    design: Floats = (together**2).sum(axis=(1, 2)) / np.maximum((apart**2).sum(axis=(1, 2)), TINY)
    return np.maximum(1, design)
