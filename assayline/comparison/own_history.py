"""The check `own history`: whether a run loses answers that the nights before it never or seldom lost.

Those nights are runs of the same configuration, machine and versions, from the baseline on. A night that failed its
limit on accuracy or on lost prompts is none of them, so that a fault stays one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assayline.comparison.queries import list_comparable
from assayline.spec.criteria import GateSpec
from assayline.stats.nights import FEWEST_NIGHTS, find_flaky, judge_nights, name_lost
from assayline.stats.worse import LEVEL, ROUNDING, Verdict
from assayline.store.database import Connection, read_rows
from assayline.words import count

OWN_HISTORY = "own history"
MOST_NIGHTS = 60
"""Maximum number of past nights that count, the newest."""
MOST_NAMED = 10
"""Maximum number of prompts in a message."""


def list_nights(connection: Connection, run_id: str, baseline: str, scorer: str) -> list[str]:
    """List the nights before a run that its prompts are compared with, in their order."""
    rows = read_rows(connection, _NIGHTS, run_id, baseline, OWN_HISTORY, MOST_NIGHTS)
    return list_comparable(connection, run_id, [row["run_id"] for row in rows], scorer)


def judge_own_history(
    connection: Connection, run_id: str, nights: Sequence[str], scorer: str, limits: GateSpec, level: float
) -> dict[str, Any]:
    """Judge a run by the nights before it; return the fields of a check.

    `level` is the largest two-sided p that is a failure.
    """
    rows = read_rows(connection, _SCORES, run_id, scorer, [*nights, run_id])
    scores = np.array([row["scores"] for row in rows], dtype=float).T
    lost, samples = 1 - scores, int(max(row["samples"] for row in rows))
    clusters = np.unique([row["cluster"] for row in rows], return_inverse=True)[1]
    cluster = clusters if len(np.unique(clusters)) < len(rows) else None
    limit = limits.max_lost_share
    judged = judge_nights(lost[None], samples, cluster, limit)
    p_value, rate = float(judged.p_value[0, -1]), judged.rate[0]
    verdict: Verdict = "fail" if p_value <= level else "inconclusive" if p_value <= LEVEL else "pass"
    asked = np.maximum(1, np.isfinite(lost[:-1]).sum(axis=0))
    is_lost, most_wrong, expected = name_lost(lost[-1], np.nansum(lost[:-1], axis=0) / asked, rate, samples)
    is_lost &= verdict != "pass"
    is_flaky = find_flaky(lost) & ~is_lost

    def describe(place: int) -> Mapping[str, Any]:
        names = {name: rows[place][name] for name in ("prompt_id", "occurrence", "scores")}
        return {**names, "finding": "lost" if is_lost[place] else "flaky", "chance": float(rate[place])}

    past = len(nights)
    if verdict == "pass":
        words = f"No more prompts are lost than their {past} past nights predict (p {p_value:.2g}"
    elif not is_lost.any():
        words = f"Scores are lower than the {past} past nights of the prompts predict (p {p_value:.2g}"
    else:
        named = count(int(is_lost.sum()), "prompt was", "prompts were")
        right = int((1 - most_wrong) * past + ROUNDING)
        words = (
            f"{named} right on at least {right} of {past} nights and wrong tonight; {expected:.1f} are expected "
            f"(p {p_value:.2g}"
        )
    words += f"); the limit is {limit:.3g} of the prompts." if limit else ")."
    if verdict == "inconclusive":
        words += f" That is not enough: it needs p ≤ {level:.2g}."
    for is_named, what in ((is_lost, "Lost"), (is_flaky, "Became flaky")):
        words += say_named(what, [rows[place]["name"] for place in np.flatnonzero(is_named)])
    prompts = np.isfinite(scores[-1]).sum()
    return {
        "check": OWN_HISTORY,
        "verdict": verdict,
        "words": words,
        "candidate": float(is_lost.sum() / prompts),
        "limit": limit,
        "unit": "share",
        "p_value": p_value,
        "prompts": [describe(int(place)) for place in np.flatnonzero(is_lost | is_flaky)],
    }


def say_not_on(nights: Sequence[str]) -> str:
    """Return why a nightly run is not judged by its own history."""
    return (
        f" The own history of its prompts is not yet judged: {len(nights)} of {FEWEST_NIGHTS} nights of this "
        "configuration, machine and versions."
    )


def say_named(what: str, names: Sequence[str]) -> str:
    """Return the first names of prompts, as text to append; empty without names."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f" {what}: {', '.join(names[:MOST_NAMED])}{more}." if names else ""


_NIGHTS = """
    select history.run_id
    from run_conditions as judged
    join run_conditions as baseline on baseline.run_id = $2
    cross join find_history(judged.config_id) as history
    join run_conditions as night on night.run_id = history.run_id
    where judged.run_id = $1
        and judged.benchmark_id is null
        and night.place = judged.place
        and (night.started_at, night.run_id) < (judged.started_at, judged.run_id)
        and night.started_at >= baseline.started_at
        and history.state in ('completed', 'imported')
        and not coalesce(list_bool_or([
            limit_on = $3 or starts_with(limit_on, 'accuracy') for limit_on in history.failed_limits
        ]), false)
    qualify row_number() over (order by history.position desc) <= $4
    order by history.position
"""
_SCORES = """
    with
        nights as (select unnest($3::varchar[]) as run_id, generate_subscripts($3::varchar[], 1) as position),
        asked as (select prompt_id, occurrence from prompt_score where run_id = $1 and scorer = $2)
    select
        asked.prompt_id,
        asked.occurrence,
        any_value(coalesce(prompt.source_id, 'row ' || prompt.source_row, asked.prompt_id)) as name,
        coalesce(any_value(prompt_cluster.cluster), asked.prompt_id) as cluster,
        max(prompt_score.samples) as samples,
        list(prompt_score.mean_value order by nights.position) as scores
    from asked
    cross join nights
    left join prompt_score
        on prompt_score.run_id = nights.run_id
        and prompt_score.scorer = $2
        and prompt_score.prompt_id = asked.prompt_id
        and prompt_score.occurrence = asked.occurrence
    left join prompt
        on prompt.run_id = $1 and prompt.prompt_id = asked.prompt_id and prompt.occurrence = asked.occurrence
    left join prompt_cluster
        on prompt_cluster.run_id = $1
        and prompt_cluster.prompt_id = asked.prompt_id
        and prompt_cluster.occurrence = asked.occurrence
    group by asked.prompt_id, asked.occurrence
    order by asked.prompt_id, asked.occurrence
"""
