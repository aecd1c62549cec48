"""Leaderboards: the runs of each task, all of their pairs, and the ranks, which are stored for any reader."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations

import numpy as np

from assayline.comparison.judges import collect_verdicts
from assayline.comparison.queries import store_comparisons
from assayline.errors import SpecError
from assayline.stats import to_rows
from assayline.stats.families import adjust_family, rank_sides
from assayline.stats.pairs import describe_pairs, measure_pairs
from assayline.stats.strengths import rank_judged
from assayline.stats.worse import Change, Comparison
from assayline.store.database import Connection, Row, is_read_only, read_rows, transaction
from assayline.store.metrics import ensure_metrics
from assayline.store.runs import insert_rows
from assayline.words import as_sentence, nearest

SCORES = "scores"
"""`ranking.kind` of a leaderboard, whose value is a mean score."""
JUDGED = "judged pairs"
"""The same of runs that judges compared in pairs, whose value is a strength."""
NO_SCORES = "it has no scores"
"""Obstacle of a complete run that was not scored."""
UNRANKED: Row = dict.fromkeys(("best_rank", "worst_rank", "is_winner"))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of a task, compared."""

    task: str
    candidate: str
    baseline: str
    found: Comparison
    """With Holm-adjusted p-values."""
    verdict: Change

    @property
    def sides(self) -> tuple[str, str]:
        return self.candidate, self.baseline


def rank_board(connection: Connection, names: Sequence[str] = ()) -> tuple[list[Row], list[Pair]]:
    """Rank the runs of these names (default: all), and store the ranks; return the cells and the compared pairs.

    Cells are those of `find_cells` with best_rank, worst_rank and is_winner, None if a score is not compared. Raises
    SpecError for a name that no finished run has.
    """
    ensure_metrics(connection, _list_candidates(connection, names))
    cells = find_cells(connection, names)
    _check_names(connection, names, cells)
    entries = [cell for cell in cells if cell["obstacle"] is None]
    pairs = compare_entries(connection, entries)
    place = {(entry["task"], entry["run_id"]): number for number, entry in enumerate(entries)}
    first, second = (np.array([place[pair.task, pair.sides[side]] for pair in pairs], int) for side in (0, 1))
    best, worst = rank_sides(first, second, [pair.verdict for pair in pairs], len(entries))
    met = {*first.tolist(), *second.tolist()}
    ranks = {
        key: {"best_rank": int(best[number]), "worst_rank": int(worst[number]), "is_winner": bool(worst[number] == 1)}
        for key, number in place.items()
        if number in met
    }
    cells = [{**cell, **ranks.get((cell["task"], cell["run_id"]), UNRANKED)} for cell in cells]
    shown = {"value": "mean", "low": "mean_low", "high": "mean_high"}
    columns = ("task", "model", "run_id", "scorer", "prompts", "best_rank", "worst_rank", "obstacle")
    rows = [
        {name: cell[source] for name, source in {**dict(zip(columns, columns, strict=True)), **shown}.items()}
        | {"is_winner": bool(cell["is_winner"])}
        for cell in cells
    ]
    store_ranking(connection, SCORES, names, rows)
    sides = [{"run_id": pair.candidate, "baseline_run_id": pair.baseline} for pair in pairs]
    described = [pair.found.as_row(pair.verdict) | one for pair, one in zip(pairs, sides, strict=True)]
    store_comparisons(connection, "leaderboard", described)
    return cells, pairs


def find_cells(connection: Connection, names: Sequence[str]) -> list[Row]:
    """Read one row per task and model: its run, score and interval, and the obstacle if its score is not compared.

    `names` are run ids, names of specs, prompt sets and ids of benchmarks; none for all runs. Runs of a benchmark count
    only by its id or their own, and judges do not. Each model has one run per spec and prompt set: one that can be
    compared with another model's, then the one with the most prompts, then with the most models, then the newest. A run
    without a scorer, which has speed alone, does not take the place of one with a score, and has a cell of its own.
    Models with the same content are one model, unless running servers had several files behind one name.

    A task is a prompt set as it was asked: the same prompt rows, settings and first scorer. If two models or more
    share that, it is a task; of a prompt set that no two models share, the newest complete run's is. A model that was
    asked otherwise stands in its prompt set's first task, with the obstacle. `reference_run_id` is the newest run that
    is compared in the task, with which others are compared to find what differs.
    """
    return read_rows(connection, _CELLS, list(names), NO_SCORES)


_CELLS = """
    with
        list_runs as (
            select
                run_id,
                name,
                prompt_set,
                model_id,
                -- Only if it tells models apart.
                case
                    when count(distinct served_root) over (partition by coalesce(model_id, model)) > 1
                    then coalesce(served_root, 'unknown files')
                end as root,
                config_id,
                concat_ws(
                    ', ',
                    arg_max(model, (started_at, run_id)) over (partition by coalesce(model_id, model)),
                    'quantization ' || (spec_json ->> '$.engine.args.quantization'),
                    'dtype ' || (spec_json ->> '$.engine.args.dtype'),
                    'kv_cache_dtype ' || (spec_json ->> '$.engine.args.kv_cache_dtype')
                ) as model,
                spec_json,
                expected_requests,
                purpose,
                state,
                started_at,
                prompts_digest
            from raw.runs
            left join (select run_id, served_root, prompts_digest from internal.run_conditions) using (run_id)
            where state <> 'running'
                and run_id not in (select run_id from raw.scorers where kind = 'verdict')
                and (
                    list_has_any($1::varchar[], [run_id, benchmark_id])
                    or benchmark_id is null
                    and (len($1::varchar[]) = 0 or list_has_any($1::varchar[], [name, prompt_set]))
                )
        ),
        choose_newest as materialized (
            select * exclude (config_id)
            from list_runs
            qualify row_number() over (
                partition by model, root, name, prompt_set, config_id
                order by state not in ('completed', 'imported'), started_at desc, run_id desc
            ) = 1
        ),
        find_scorers as (
            select
                run_id,
                scorer,
                md5(concat_ws('/', scorer, kind, json_merge_patch(arguments_json, '{"harness": null}'), definition))
                    as judging
            from raw.scorers
            where run_id in (select run_id from choose_newest)
            qualify row_number() over (partition by run_id order by ordinal, scorer) = 1
        ),
        count_answers as (
            select
                run_id,
                count(distinct request_id) filter (error_kind is distinct from 'not_sent') as answered_requests,
                count(distinct request_id) filter (error_kind <> 'not_sent') as error_requests
            from raw.completions
            where run_id in (select run_id from choose_newest)
            group by run_id
        ),
        scored as (
            select
                run_id,
                detail as scorer,
                max(value) filter (metric = 'scored_prompts') as prompts,
                max(n) filter (metric = 'accuracy') as samples,
                max(value) filter (metric = 'accuracy') as mean,
                max(low) filter (metric = 'accuracy') as mean_low,
                max(high) filter (metric = 'accuracy') as mean_high
            from raw.metric_values
            where run_id in (select run_id from choose_newest) and metric in ('accuracy', 'scored_prompts')
            group by run_id, detail
        ),
        describe_runs as (
            select
                choose_newest.* exclude (model, root),
                case
                    when root is not null then choose_newest.model || ' @' || root
                    when count(distinct choose_newest.model_id) over (partition by choose_newest.model) > 1
                    then choose_newest.model || ' @' || left(choose_newest.model_id, 8)
                    else choose_newest.model
                end as model,
                find_scorers.scorer,
                find_scorers.judging,
                md5(concat_ws(
                    '/',
                    spec_json -> '$.sampling',
                    spec_json -> '$.chat',
                    spec_json -> '$.reasoning',
                    spec_json -> '$.prompts.repeats',
                    spec_json -> '$.prompts.source.num_fewshot',
                    spec_json -> '$.prompts.source.apply_chat_template'
                )) as settings,
                choose_newest.expected_requests - coalesce(count_answers.answered_requests, 0) as open_requests,
                coalesce(count_answers.error_requests, 0) as error_requests,
                cast(scored.prompts as bigint) as prompts,
                scored.samples,
                scored.mean,
                scored.mean_low,
                scored.mean_high
            from choose_newest
            left join find_scorers using (run_id)
            left join count_answers using (run_id)
            left join scored on scored.run_id = choose_newest.run_id and scored.scorer = find_scorers.scorer
        ),
        check_asked as (
            select
                *,
                case
                    when state not in ('completed', 'imported') then 'it is ' || state || ', not completed'
                    when purpose = 'totals' and mean is not null
                    then 'its file has no samples, with which scores are paired'
                    when open_requests > 0 and purpose is distinct from 'totals'
                    then printf('%d of its %d requests have no answer', open_requests, expected_requests)
                    when mean is null then $2
                end as gap,
                count(distinct model) filter (gap is null) over (
                    partition by prompt_set, prompts_digest, judging, settings
                ) as models
            from describe_runs
        ),
        check_runs as materialized (
            select *
            from check_asked
            qualify row_number() over (
                partition by model, name, prompt_set, scorer is null
                order by gap is not null, state not in ('completed', 'imported'),
                    models = 1, prompts desc, models desc, started_at desc,
                    run_id desc
            ) = 1
        ),
        -- How many models share a way of asking, and since when.
        count_shares as (
            select
                prompt_set,
                prompts_digest,
                judging,
                settings,
                count(distinct model) as models,
                max(prompts) as most_prompts,
                max(started_at) as newest_at,
                arg_max(run_id, (started_at, run_id)) as reference_run_id
            from check_runs
            where gap is null
            group by prompt_set, prompts_digest, judging, settings
        ),
        number_tasks as (
            select
                *,
                row_number() over (
                    partition by prompt_set
                    order by models = 1, most_prompts desc, models desc, newest_at desc, settings, judging
                ) as number
            from count_shares
            qualify models > 1 or number = 1
        ),
        join_shared as (
            select check_runs.*, number_tasks.number, number_tasks.reference_run_id, gap as obstacle
            from check_runs
            join number_tasks using (prompt_set, prompts_digest, judging, settings)
            where gap is null
        ),
        join_others as (
            select
                check_runs.*,
                coalesce(first_task.number, 1) as number,
                first_task.reference_run_id,
                coalesce(gap, case
                    when check_runs.prompts_digest is distinct from first_task.prompts_digest
                    then 'it was asked other prompts'
                    when check_runs.judging is distinct from first_task.judging
                    then 'it was scored by another scorer, or by another version of it: '
                        || '`assayline score --stale` scores again'
                    else 'it was asked with other settings'
                end) as obstacle
            from check_runs
            left join number_tasks as first_task
                on first_task.prompt_set = check_runs.prompt_set and first_task.number = 1
            where check_runs.scorer is null or not exists (
                select 1 from join_shared
                where join_shared.prompt_set = check_runs.prompt_set and join_shared.model = check_runs.model
            )
        ),
        -- Two specs that ask the same of one model are one cell: the newer run's.
        choose_cells as materialized (
            select * from join_shared
            union all by name
            select * from join_others
            qualify row_number() over (
                partition by prompt_set, number, model, scorer is null
                order by state not in ('completed', 'imported'), started_at desc, run_id desc
            ) = 1
        )
    select
        prompt_set || case when number = 1 then '' else ' (' || number || ')' end as task,
        model,
        run_id,
        name,
        scorer,
        obstacle,
        reference_run_id,
        prompts,
        samples,
        mean,
        mean_low,
        mean_high,
        error_requests
    from choose_cells
    order by prompt_set, number, obstacle is not null, mean desc, model
"""


def compare_entries(connection: Connection, entries: Sequence[Row]) -> list[Pair]:
    """Compare all pairs of runs of each task prompt by prompt, as one family of tests; highest scores first.

    `entries` have task, run_id and scorer. The limit of a ranking is 0: any difference counts.
    """
    listed = [(first, second) for first, second in combinations(entries, 2) if first["task"] == second["task"]]
    if not listed:
        return []
    asked = [{key: entry[key] for key in ("task", "run_id", "scorer")} for entry in entries]
    sums = connection.execute(_SUMS, [asked]).fetchnumpy()
    number = {(first["task"], first["run_id"], second["run_id"]): place for place, (first, second) in enumerate(listed)}
    sides = zip(sums["first"].tolist(), sums["second"].tolist(), strict=True)
    found = [number[entries[one]["task"], entries[one]["run_id"], entries[other]["run_id"]] for one, other in sides]
    rows = to_rows(measure_pairs(np.array(found, int), sums, len(listed)))
    compared = adjust_family(
        [describe_pairs(row | {"scorer": first["scorer"]}) for row, (first, _) in zip(rows, listed, strict=True)]
    )
    pairs = [
        Pair(first["task"], first["run_id"], second["run_id"], one, one.name_change())
        for one, (first, second) in zip(compared, listed, strict=True)
    ]
    return sorted(pairs, key=lambda pair: (pair.task, -(pair.found.value or 0), -(pair.found.baseline_value or 0)))


_COMPARED = """
    select
        judged_run_id,
        other_run_id,
        any_value(cluster_key) as cluster,
        (avg(value) filter (first = 'a') + avg(value) filter (first = 'b')) / 2 as value,
        cast(coalesce(any_value(longer), 0) as integer) as longer
    from verdict_of_judge
    where status = 'judged' and other_run_id <> judged_run_id
    group by judged_run_id, other_run_id, answer
    having value is not null
"""
"""Pairs of answers judged in both orders: the mean of both, over judges and repeats, cancels a position bias."""


_SUMS = """
    with
        list_entries as (
            select
                unnest($1::struct(task varchar, run_id varchar, scorer varchar)[], recursive := true),
                generate_subscripts($1::struct(task varchar, run_id varchar, scorer varchar)[], 1) - 1 as place
        ),
        average_samples as materialized (
            select task, place, any_value(run_id) as run_id, prompt_id, occurrence, avg(value) as value
            from raw.scores
            join list_entries using (run_id, scorer)
            group by task, place, prompt_id, occurrence
        ),
        find_clusters as (
            select task, prompt_id, occurrence, coalesce(min(cluster), prompt_id) as cluster
            from average_samples
            left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
            group by task, prompt_id, occurrence
        ),
        number_prompts as (
            select
                task,
                prompt_id,
                occurrence,
                row_number() over () as prompt,
                case when count(*) over (partition by task, cluster) > 1 then cluster end as shared_cluster
            from find_clusters
        ),
        place_scores as materialized (
            select place, prompt, shared_cluster, value
            from average_samples
            join number_prompts using (task, prompt_id, occurrence)
        )
    select
        one.place as first,
        other.place as second,
        one.shared_cluster is null as is_single,
        count(*) as prompts,
        sum(one.value) as first_total,
        sum(other.value) as second_total,
        sum((one.value - other.value) ** 2) as squares,
        max(abs(one.value - other.value)) as largest,
        count(*) filter (one.value > other.value) as better,
        count(*) filter (one.value < other.value) as worse,
        bool_and(one.value in (0, 1) and other.value in (0, 1)) as is_binary
    from place_scores as one
    join place_scores as other on other.prompt = one.prompt and other.place > one.place
    group by one.place, other.place, one.shared_cluster
"""
"""Sums of `measure_pairs` by pair of runs, as places in the entries, and cluster of prompt rows. Rows that are the only
one of their cluster are one row together."""


def rank_judged_runs(connection: Connection, rubric: str, judge_run_ids: Sequence[str]) -> list[Row]:
    """Rank the runs whose answers these judges compared in pairs, and store the ranks; strongest first.

    Rows have run_id, model (None if the database lacks the run) and the columns of `rank_judged` in
    `stats/strengths.py`.
    """
    collect_verdicts(connection, judge_run_ids)
    rows = read_rows(connection, _COMPARED)
    if not rows:
        return []
    sides = ("judged_run_id", "other_run_id")
    run_ids = sorted({row[side] for row in rows for side in sides})
    models = dict(connection.execute("select run_id, model from runs").fetchall())
    first, second = (np.searchsorted(run_ids, [row[side] for row in rows]) for side in sides)
    prompt = np.unique([row["cluster"] for row in rows], return_inverse=True)[1]
    value, longer = (np.array([row[key] for row in rows], float) for key in ("value", "longer"))
    ranked = to_rows(rank_judged(first, second, prompt, value, longer, len(run_ids)))
    found = [
        {"run_id": run_id, "model": models.get(run_id), **row} for run_id, row in zip(run_ids, ranked, strict=True)
    ]
    kept = ("run_id", "model", "low", "high", "prompts", "best_rank", "worst_rank", "is_winner")
    stored = [{"task": rubric, "value": row["strength"], **{key: row[key] for key in kept}} for row in found]
    store_ranking(connection, JUDGED, judge_run_ids, stored)
    return sorted(found, key=lambda row: (row["strength"] is None, -(row["strength"] or 0), -row["won_share"]))


def store_ranking(connection: Connection, kind: str, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Store the rows of a ranking in place of the last one of the same names. A reader stores nothing."""
    if is_read_only(connection):
        return
    ranked_at = datetime.now(UTC).replace(tzinfo=None)
    with transaction(connection):
        connection.execute("delete from rankings where kind = ? and names = ?::varchar[]", [kind, list(names)])
        key = {"kind": kind, "names": list(names), "ranked_at": ranked_at}
        insert_rows(connection, "rankings", [{**key, **row} for row in rows])


def _list_candidates(connection: Connection, names: Sequence[str]) -> list[str]:
    """List the runs that may have a cell."""
    query = """
        select run_id
        from runs
        where len($names::varchar[]) = 0 or list_has_any($names::varchar[], [run_id, benchmark_id, name, prompt_set])
    """
    return [run_id for (run_id,) in connection.execute(query, {"names": list(names)}).fetchall()]


def _check_names(connection: Connection, names: Sequence[str], cells: Sequence[Row]) -> None:
    rows = read_rows(connection, "select run_id, name, prompt_set, benchmark_id, state from runs")
    ended = [row for row in rows if row["state"] != "running"]
    known = {row[key] for row in ended for key in ("run_id", "benchmark_id")}
    known |= {row[key] for row in ended if row["benchmark_id"] is None for key in ("name", "prompt_set")}
    for name in names:
        if name in known:
            continue
        if any(row["run_id"] == name for row in rows):
            raise SpecError(
                f"Run {name} has not finished, and a leaderboard compares finished runs. hint: wait for it, or "
                f"resume it with `assayline evaluate --resume {name}`."
            )
        named = sorted({row[key] for row in ended for key in ("name", "prompt_set")})
        near = nearest(name, named) if named else "no run has finished yet"
        raise SpecError(
            f"The database has no run, spec or prompt set {name!r}: {as_sentence(near)} hint: pass run ids, "
            "spec names, prompt sets or benchmark ids, or nothing for all runs."
        )
    if not cells:
        raise SpecError(
            "A leaderboard has no runs yet: none outside a benchmark has finished, except for judges. hint: "
            "run `assayline evaluate SPEC` first."
        )
