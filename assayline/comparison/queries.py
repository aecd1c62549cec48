"""Comparisons of two runs or of repeats of two configurations: rows of the macros of `sql/models/30_comparison/`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from assayline.errors import SpecError
from assayline.stats import to_rows
from assayline.stats.families import adjust_family
from assayline.stats.pairs import count_prompts_needed, describe_pairs, find_reach, measure_pairs
from assayline.stats.repeats import FEWEST_NIGHTS, compare_repeats, spread_sessions
from assayline.stats.worse import LEVEL, Comparison, Verdict
from assayline.store.database import Connection, is_read_only, read_rows, transaction
from assayline.store.metrics import ensure_metrics, ensure_repeats
from assayline.store.runs import insert_rows
from assayline.store.scoring import list_stale
from assayline.words import show_share, show_size


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs of a comparison."""

    run_id: str
    state: str
    spec_json: str
    config_id: str | None
    benchmark_id: str | None
    scorers: list[str]
    """Names of its scorers, the most important one first."""
    error_share: float | None
    truncated_share: float | None
    draft_acceptance: float | None
    tasks_json: str | None = None
    """Scorers of the tasks that its first scorer spans, by task; None for one task."""


def read_side(connection: Connection, run_id: str) -> Side:
    """Read one run of a comparison. Raises SpecError for an unknown run."""
    ensure_metrics(connection, [run_id])
    rows = read_rows(connection, _SIDE, run_id)
    if not rows:
        raise SpecError(f"Run {run_id} is not in the database. hint: list the runs with `from run`.")
    return Side(**rows[0])


_SIDE = """
    select
        run_id,
        state,
        spec_json,
        config_id,
        benchmark_id,
        (select coalesce(list(scorer order by ordinal, scorer), []) from scorers where run_id = $1) as scorers,
        (select arg_min(arguments_json, ordinal) from scorers where run_id = $1) ->> '$.tasks' as tasks_json,
        (
            select
                -- A file of totals states counts alone.
                coalesce(
                    max(value) filter (metric = 'error_share'),
                    max(value) filter (metric = 'error_requests')
                        / nullif(sum(value) filter (metric in ('error_requests', 'ok_requests')), 0)
                )
            from metric_values
            where run_id = $1
        ) as error_share,
        (select any_value(value) from metric_values where run_id = $1 and metric = 'truncated_share')
            as truncated_share,
        (select any_value(value) from metric_values where run_id = $1 and metric = 'draft_acceptance')
            as draft_acceptance
    from runs
    where run_id = $1
"""


def read_obstacle(connection: Connection, run_id: str) -> str | None:
    """Read why a run is not a repeat of its configuration for speed; see run_conditions."""
    [row] = read_rows(connection, "select obstacle from run_conditions where run_id = ?", run_id)
    obstacle: str | None = row["obstacle"]
    return obstacle


def find_obstacle(connection: Connection, new: Side, old: Side) -> str | None:
    """Return the reason why speed limits cannot be judged, as the end of a sentence; None if they can."""
    for side in (new, old):
        if obstacle := read_obstacle(connection, side.run_id):
            return f"run {side.run_id} does not count among the repeats: {obstacle}"
    if new.benchmark_id and (new.benchmark_id, new.config_id) == (old.benchmark_id, old.config_id):
        return "both runs are repeats of one configuration in one benchmark"
    return None


def list_pinned(repeats: tuple[list[str], list[str]], baseline: str) -> list[str]:
    """Return the baseline and its repeats before it that are none of the candidate."""
    candidates, baselines = repeats
    until = baselines.index(baseline) + 1 if baseline in baselines else 0
    return [run_id for run_id in baselines[:until] if run_id not in candidates]


def read_overlaps(
    connection: Connection, candidate: str, baseline: str, min_overlap: float
) -> dict[str, dict[str, Any]]:
    """Read the rows of overlap_prompts, by pairing."""
    rows = read_rows(connection, "from overlap_prompts(?, ?, min_overlap := ?)", candidate, baseline, min_overlap)
    return {row["pairing"]: row for row in rows}


def choose_pairing(overlaps: Mapping[str, dict[str, Any]]) -> str:
    """Return the pairing that `overlap_prompts` chose."""
    return next(name for name, row in overlaps.items() if row["is_chosen"])


def say_pairing(pairing: str, candidate_spec: dict[str, Any], baseline_spec: dict[str, Any]) -> str:
    """Describe the pairing, such as `paired by source row: the template differs`; empty if by prompt."""
    if pairing == "prompt":
        return ""
    ours, theirs = (spec.get("prompts", {}) for spec in (candidate_spec, baseline_spec))
    apart = [name for name in ("source", "columns", "template", "turns") if ours.get(name) != theirs.get(name)]
    differs = "differs" if apart in (["source"], ["template"]) else "differ"
    by = "source row" if pairing == "row" else pairing
    return f"paired by {by}" + (f": the {' and '.join(apart)} {differs}" if apart else "")


def compare_scores(
    connection: Connection,
    candidate: str,
    baseline: str,
    pair_by: str = "prompt",
    baseline_repeats: Sequence[str] = (),
    candidate_repeats: Sequence[str] = (),
    limit: float = 0.0,
) -> dict[str, Comparison]:
    """Compare the scores of two runs, each with its repeats, prompt by prompt, by scorer.

    `pairs` has the columns of `compare_runs`, too. Values are None without pairs.
    """
    repeats = list(baseline_repeats), list(candidate_repeats)
    sums: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(connection, _SUMS, candidate, baseline, pair_by, *repeats):
        sums.setdefault(row["scorer"], []).append(row)
    return {scorer: describe_pairs(_add_up(rows), limit) for scorer, rows in sums.items()}


_SUMS = """
    with
        pair_scores as materialized (
            select *, difference is not null as is_pair
            from internal.pair_prompts(
                $1, $2, pair_by := $3, baseline_repeats := $4::varchar[], candidate_repeats := $5::varchar[]
            )
        ),
        choose_sides as (
            select scorer, count(distinct baseline_cluster) < count(distinct cluster) as has_fewer_in_baseline
            from pair_scores
            where is_pair
            group by scorer
        ),
        name_clusters as (
            select pair_scores.*, case when has_fewer_in_baseline then baseline_cluster else cluster end as pair_cluster
            from pair_scores
            left join choose_sides using (scorer)
        ),
        share_clusters as (
            select
                *,
                case
                    when is_pair and count(*) over (partition by scorer, is_pair, pair_cluster) > 1 then pair_cluster
                end as shared_cluster
            from name_clusters
        ),
        -- Results of a harness are stored next to a scorer's arguments, but are not arguments.
        compare_scorers as (
            select
                scorer,
                count(distinct (kind, json_merge_patch(arguments_json, '{"harness": null}'), definition)) = 1
                    as same_scorer
            from raw.scorers
            where run_id in ($1, $2)
            group by scorer
            having count(*) = 2
        )
    select
        scorer,
        any_value(same_scorer) as same_scorer,
        any_value(pairing) as paired_by,
        shared_cluster is null as is_single,
        count(difference) as prompts,
        count(*) filter (baseline_value is null) as only_candidate,
        count(*) filter (candidate_value is null) as only_baseline,
        coalesce(sum(candidate_value) filter (is_pair), 0) as first_total,
        coalesce(sum(baseline_value) filter (is_pair), 0) as second_total,
        coalesce(sum(candidate_value ** 2) filter (is_pair), 0) as first_squares,
        coalesce(sum(baseline_value ** 2) filter (is_pair), 0) as second_squares,
        coalesce(sum(difference ** 2), 0) as squares,
        coalesce(max(abs(difference)), 0) as largest,
        count(*) filter (difference > 0) as better,
        count(*) filter (difference < 0) as worse,
        coalesce(bool_and(candidate_value in (0, 1) and baseline_value in (0, 1)) filter (is_pair), true) as is_binary,
        count(*) filter (is_pair and has_error) as error_pairs
    from share_clusters
    left join compare_scorers using (scorer)
    group by scorer, is_pair, shared_cluster
    order by all
"""
"""Sums of `measure_pairs` by scorer and cluster of prompt rows, of the run with fewer of them. Rows that are the only
one of their cluster are one row together, and so are those that only one of the runs has."""


def _add_up(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    [measured] = to_rows(measure_pairs(np.zeros(len(rows), int), columns))
    found = {name: rows[0][name] for name in ("scorer", "same_scorer", "paired_by")} | measured
    found |= {name: int(columns[name].sum()) for name in ("only_candidate", "only_baseline", "error_pairs")}
    prompts = found["prompts"]
    found["overlap_share"] = prompts / (prompts + found["only_candidate"] + found["only_baseline"])
    for side, place in (("candidate", "first"), ("baseline", "second")):
        found[f"{side}_square"] = float(columns[f"{place}_squares"].sum()) / prompts if prompts else None
    return found


def list_worse(
    connection: Connection, candidate: str, baseline: str, pair_by: str, repeats: Sequence[str], scorer: str
) -> list[str]:
    """List the names of the prompts that scored lower than in the baseline, the largest losses first."""
    query = """
        select coalesce(source_id, 'row ' || source_row, prompt_id) as name
        from pair_prompts($1, $2, pair_by := $3, baseline_repeats := $4::varchar[])
        left join (select * from prompt where run_id = $1) using (prompt_id, occurrence)
        where scorer = $5 and difference < 0
        order by difference, source_row, name
    """
    rows = read_rows(connection, query, candidate, baseline, pair_by, list(repeats), scorer)
    return [row["name"] for row in rows]


def say_reach(row: Mapping[str, Any], limit: float, found: Verdict, level: float) -> str:
    """Return the smallest drop that fails with 80% power on these prompts, and how many show twice the limit."""
    drop = find_reach(row, limit, level)
    if drop is None:
        return ""
    reached = "No drop" if drop > 1 else f"A drop of {show_size(float(f'{drop:.2g}'))}"
    needed = None if found == "fail" else count_prompts_needed(row, limit, level)
    twice = f", one of {show_size(2 * limit)} (twice the limit) with about {needed:,} prompts" if needed else ""
    more = twice if needed and needed > row["prompts"] else ""
    return f"{reached} would be found with 80% power{more}."


CHURN = 0.05
"""Share of answers that differ between equal runs, assumed before a run."""


def foresee_reach(prompts: int, limit: float, level: float = LEVEL) -> str:
    """Describe the reach of a limit before a run, given the number of independent prompts with scores of 0 and 1."""
    counts = dict.fromkeys(("prompts", "effective_pairs", "effective_clusters"), prompts)
    row = counts | {"low": 0.0, "high": 0.0, "mean_square": CHURN, "padding": 2.0, "is_proportion": True}
    said = say_reach(row, limit, "inconclusive", level).removesuffix(".")
    return f"limit {show_size(limit)}. {said}, if {show_share(CHURN)} of the answers differ by chance."


def say_few_repeats(connection: Connection, run_id: str) -> str | None:
    """Return why the speed of later runs cannot be judged against a run; None if it can, or if nothing limits it."""
    side = read_side(connection, run_id)
    gate = json.loads(side.spec_json).get("gate", {})
    if not (gate.get("max_slowdown", True) or gate.get("max_cost_increase")):
        return None
    hint = "hint: `assayline gate RUN_ID --remeasure` measures both sides"
    if obstacle := read_obstacle(connection, run_id):
        return f"Speed cannot be judged against it: {obstacle}. {hint}, or pin another run."
    ensure_repeats(connection, run_id)
    has = max((row["repeats"] for row in read_band(connection, run_id)), default=1)
    if has >= FEWEST_NIGHTS:
        return None
    more = (
        "Later runs add none, because it is of a benchmark or suite"
        if side.benchmark_id
        else "Equal runs that follow are its repeats until there are five, and a schedule judges speed five runs later"
    )
    return f"Limits on speed need three repeats of the baseline, and five on a schedule; it has {has}. {more}. {hint}."


def read_band(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """Return the level that later runs are compared with, by metric of `run_metric`: value, low, high and repeats.

    For accuracy, they are the run's own value and interval; for a speed, median and range over its repeats: the newest
    ten runs of its configuration in its environment without an obstacle, up to it or in its benchmark. A run without
    repeats is its own.
    """
    return read_rows(connection, _BAND, run_id)


_BAND = """
    with baseline as (from run_conditions where run_id = $1),
    repeats as (
        select repeated.run_id
        from run_conditions as repeated
        join baseline using (config_id, environment)
        where repeated.obstacle is null
            and repeated.benchmark_id is not distinct from baseline.benchmark_id
            and (baseline.benchmark_id is not null or repeated.started_at <= baseline.started_at)
        qualify row_number() over (order by repeated.started_at desc, repeated.run_id desc) <= 10
    )
    select
        metric,
        any_value(unit) as unit,
        median(value) as value,
        case when metric = 'accuracy' then any_value(low) else min(value) end as low,
        case when metric = 'accuracy' then any_value(high) else max(value) end as high,
        count(*) as repeats
    from run_metric
    where value is not null and case
        when metric = 'accuracy' or not exists (from repeats) then run_id = $1
        else run_id in (from repeats)
    end
    group by metric
"""


def say_selected(connection: Connection, run_id: str) -> str | None:
    """Return why equal runs would look worse than a run that is the best of them; None if they would not."""
    ensure_repeats(connection, run_id)
    values = {row["run_id"]: row["value"] for row in read_rows(connection, _EQUAL_RUNS, run_id)}
    newest = next(reversed(values), run_id)
    if run_id == newest or values.get(run_id, 0.0) < max(values.values()) or len({*values.values()}) == 1:
        return None
    return (
        f"It has the highest accuracy of {len(values)} equal runs, {show_share(values[run_id])} (their mean is "
        f"{show_share(sum(values.values()) / len(values))}), partly by chance, so equal runs look worse than it. "
        f"hint: pin the newest of them, {newest}: the gate averages it with its repeats before it."
    )


_EQUAL_RUNS = """
    select run_id, value
    from run_conditions
    join run_metric using (run_id)
    where metric = 'accuracy' and value is not null and answers_obstacle is null and (config_id, environment) in (
        select (config_id, environment) from run_conditions where run_id = ?
    )
    order by started_at, run_id
"""


def compare_accuracy(
    connection: Connection, candidates: Sequence[str], baselines: Sequence[str], limit: float, rivals: int = 1
) -> Comparison | None:
    """Compare the accuracy of two configurations by prompt, with the mean over their repeats; p is times `rivals`.

    None if the scores have no common prompts.
    """
    scorers = read_side(connection, candidates[-1]).scorers if candidates and baselines else []
    if not scorers:
        return None
    rows = compare_scores(connection, candidates[-1], baselines[-1], "auto", baselines, candidates, limit)
    found = rows.get(scorers[0])
    return found and adjust_family([found], rivals)[0] if found and found.counts[0] else None


def store_comparisons(connection: Connection, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store rows of `Comparison.as_row` with run_id and baseline_run_id.

    They replace those of the same kind and runs. A reader stores nothing.
    """
    if is_read_only(connection):
        return
    compared_at = datetime.now(UTC).replace(tzinfo=None)
    with transaction(connection):
        query = """
            delete from comparisons
            where kind = ? and (run_id, baseline_run_id) in (select (unnest(?::varchar[]), unnest(?::varchar[])))
        """
        connection.execute(query, [kind, *([row[side] for row in rows] for side in ("run_id", "baseline_run_id"))])
        insert_rows(connection, "comparisons", [{"kind": kind, **row, "compared_at": compared_at} for row in rows])


def list_comparable(connection: Connection, baseline: str, repeats: Sequence[str], scorer: str) -> list[str]:
    """List the repeats, in their order, whose scores are by the same definition of the scorer as the baseline's."""
    query = """
        select repeated.run_id
        from scorers as repeated
        join scorers as pinned using (scorer, kind)
        where pinned.run_id = $1 and list_contains($2::varchar[], repeated.run_id) and scorer = $3
            and pinned.arguments_json is not distinct from repeated.arguments_json
            and pinned.definition is not distinct from repeated.definition
        order by list_position($2::varchar[], repeated.run_id)
    """
    return [row["run_id"] for row in read_rows(connection, query, baseline, list(repeats), scorer)]


def explain_other_scorer(connection: Connection, scorer: str, new: str, old: str) -> str:
    """Return why the scores of a scorer in two runs cannot be compared, with a hint."""
    stale = [run_id for run_id in list_stale(connection) if run_id in (new, old)]
    if stale:
        why = "the definition of the scorer changed between them"
        hint = f"score again with the current scorer: {' and '.join(f'`assayline score {run_id}`' for run_id in stale)}"
    else:
        why = "kind, arguments or the version of the lm-evaluation-harness task differ"
        hint = f"score the baseline with the run's scorer (`assayline score {old} --scorer …`), or run it again"
    return f"Scores of {scorer!r} in the runs {new} and {old} cannot be compared: {why}. hint: {hint}."


def choose_repeats(
    connection: Connection, candidate: str, baseline: str, *, for_accuracy: bool = False
) -> tuple[list[str], list[str]]:
    """Read the repeats of both configurations whose speed, or accuracy, may be compared, from choose_repeats."""
    ensure_repeats(connection, candidate, baseline)
    query = "from choose_repeats(?, ?, for_accuracy := ?)"
    rows = read_rows(connection, query, candidate, baseline, for_accuracy)
    candidates, baselines = (
        [row["run_id"] for row in rows if row["side"] == side] for side in ("candidate", "baseline")
    )
    return candidates, baselines


def compare_speed(
    connection: Connection,
    candidates: Sequence[str],
    baselines: Sequence[str],
    limits: Mapping[str, float],
    nights: int = 1,
    *,
    is_apart: bool = False,
    rivals: int = 1,
) -> dict[str, Comparison]:
    """Compare the metrics of the repeats of two configurations, by metric; see `compare_repeats`.

    `is_apart`: they are of different sessions, whose spread is that of all sessions of both configurations.
    """
    ensure_metrics(connection, [*candidates, *baselines])
    sides = list(candidates), list(baselines)
    levels: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, Counter[str]] = {}
    for row in read_rows(connection, _SESSIONS, *sides, [*candidates, *baselines]) if is_apart else ():
        levels.setdefault(row["metric"], {}).setdefault(row["config_id"], []).append(row["level"])
        counts.setdefault(row["metric"], Counter()).update(new=row["is_new"], old=row["is_old"])
    sessions = {metric: spread_sessions(levels[metric], **counts[metric]) for metric in levels} if is_apart else None
    rows = read_rows(connection, _REPEATS, *sides)
    return compare_repeats(rows, limits, nights=nights, sessions=sessions, rivals=rivals)


_REPEATS = """
    select metric, unit, higher_is_better, list_contains($1::varchar[], run_id) as is_candidate, value
    from run_metric
    where value is not null and list_contains($1::varchar[] || $2::varchar[], run_id)
    order by metric, run_id
"""
"""Values of the repeats of two sides, in the order of their runs, whose ids begin with their start times."""


_SESSIONS = """
    select
        metric,
        config_id,
        avg(ln(value)) as level,
        bool_or(list_contains(?::varchar[], run_id)) as is_new,
        bool_or(list_contains(?::varchar[], run_id)) as is_old
    from run_conditions
    join run_metric using (run_id)
    where obstacle is null and value > 0 and (config_id, environment) in (
        select (config_id, environment) from run_conditions where list_contains(?::varchar[], run_id)
    )
    group by metric, config_id, coalesce(benchmark_id, started_at::date::varchar)
"""
"""Means of the logarithms of each metric by session: a benchmark, gate or suite that measured again, or else a day."""


def read_metric(connection: Connection, run_id: str, metric: str = "accuracy") -> float | None:
    """Return a metric of run_metric of a run, such as the accuracy by its first scorer; None if it has none."""
    ensure_metrics(connection, [run_id])
    rows = read_rows(connection, "select value from run_metric where (run_id, metric) = (?, ?)", run_id, metric)
    return rows[0]["value"] if rows else None
