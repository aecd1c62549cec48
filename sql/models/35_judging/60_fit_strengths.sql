-- Grain: one row per judged run × prompt (or prior observation).
--
-- `run_ids` is a list of run ids of judges that compare pairs. The model is Bradley and Terry's (1952): run i wins
-- against run j with probability 1 / (1 + exp(strength j − strength i)). A comparison is two answers to one prompt: the
-- mean of both orders over all given judges and repeats, ties counting half, so that a position bias cancels. A
-- comparison that was judged in one order only does not count.
-- Each pair of runs that met has half a win and half a loss added, so that a run that always won has a strength, too:
-- for two runs the difference is ln((wins + 1/2) / (losses + 1/2)).
--
-- run_id: the judged run.
-- comparisons: its comparisons.
-- prompts: prompts of these comparisons.
-- won_share: share of comparisons won, 0 to 1, ties counting half.
-- strength: maximum likelihood on the scale of natural logarithms of odds; the mean over runs is 0. Minorization and
--     maximization (Hunter 2004). NULL unless comparisons link every run to every other.
-- cluster: the prompt; or the name of a prior observation.
-- influence: how far the cluster moves the strength: row of the inverse information × the cluster's score. Sums of
--     their squares × G / (G − 1), G prompts, are the variance clustered by prompt (the sandwich).
create or replace macro internal.fit_strengths(run_ids) as table
with recursive

average_orders as (
    select
        judged_run_id,
        other_run_id,
        any_value(cluster) as cluster,
        (avg(value) filter (first = 'a') + avg(value) filter (first = 'b')) / 2 as value
    from internal.list_judgements(run_ids)
    where status = 'judged' and judge_run_id is not null and other_run_id <> judged_run_id
    group by judged_run_id, other_run_id, answer
),

list_sides as (
    select unnest([judged_run_id, other_run_id]) as run_id, unnest([value, 1 - value]) as value, cluster
    from average_orders
    where value is not null
),

number_runs as materialized (
    select
        run_id,
        row_number() over (order by run_id) as place,
        count(*) as comparisons,
        count(distinct cluster) as prompts,
        avg(value) as won_share
    from list_sides
    group by run_id
),

place_pairs as materialized (
    select
        cluster,
        least(one.place, two.place) as i,
        greatest(one.place, two.place) as j,
        case when one.place < two.place then value else 1 - value end as value
    from average_orders
    join number_runs as one on one.run_id = judged_run_id
    join number_runs as two on two.run_id = other_run_id
    where value is not null
),

sum_pairs as (
    select i, j, count(*) + 1 as games, sum(value) + 0.5 as wins
    from place_pairs
    group by i, j
),

mirror_pairs as (
    from sum_pairs
    union all
    select j, i, games, games - wins from sum_pairs
),

reach_runs as (
    select cast(1 as bigint) as place
    union
    select mirror_pairs.j from reach_runs join mirror_pairs on mirror_pairs.i = reach_runs.place
),

fill_row as (
    select
        one.place,
        list(coalesce(games, 0) order by two.place) as games,
        sum(coalesce(wins, 0)) as wins
    from number_runs as one
    cross join number_runs as two
    left join mirror_pairs on mirror_pairs.i = one.place and mirror_pairs.j = two.place
    group by one.place
),

build_matrix as materialized (
    select list(games order by place) as games, list(wins order by place) as wins, count(*) as runs
    from fill_row
    having runs = (select count(*) from reach_runs)
),

step_odds as (
    select 0 as step, list_transform(wins, lambda w: 1.0::double) as odds, 1.0::double as change
    from build_matrix
    union all
    select
        step + 1,
        moved,
        list_max(list_transform(moved, lambda x, i: abs(ln(x / odds[i]))))
    from (
        select
            step,
            odds,
            list_transform(games, lambda row, i: wins[i] / list_sum(
                list_transform(row, lambda n, j: n / (odds[i] + odds[j]))
            )) as moved
        from step_odds
        cross join build_matrix
        where change > 1e-11 and step < 20000
    )
),

fit_odds as materialized (
    select
        odds,
        runs,
        list_transform(games, lambda row, i: list_concat(
            list_transform(row, lambda n, j: 1 / runs + case
                when i <> j then -n * odds[i] * odds[j] / (odds[i] + odds[j]) ** 2
                else list_sum(list_transform(row, lambda m, k: m * odds[i] * odds[k] / (odds[i] + odds[k]) ** 2))
            end),
            list_transform(row, lambda n, j: case when i = j then 1.0::double else 0.0::double end)
        )) as information
    from step_odds
    cross join build_matrix
    order by step desc
    limit 1
),

-- Gauss and Jordan: the right half becomes the inverse. No pivoting, as the matrix is positive definite.
eliminate as (
    select 1 as k, runs, information as rows from fit_odds
    union all
    select
        k + 1,
        runs,
        list_transform(rows, lambda row, i: list_transform(row, lambda x, j: case
            when i = k then x / rows[k][k]
            else x - row[k] * rows[k][j] / rows[k][k]
        end))
    from eliminate
    where k <= runs
),

invert as materialized (
    select k, runs, rows from eliminate where k = runs + 1
),

find_gaps as (
    select cluster, i, j, value - odds[i] / (odds[i] + odds[j]) as gap
    from place_pairs
    cross join fit_odds
    union all
    select
        concat_ws(' ', 'prior', i, j, outcome),
        i,
        j,
        sqrt(0.5) * (outcome - odds[i] / (odds[i] + odds[j]))
    from sum_pairs
    cross join fit_odds
    cross join (values (0), (1)) as outcomes (outcome)
),

sum_scores as (
    select cluster, place, sum(gap) as score
    from (
        select cluster, i as place, gap from find_gaps
        union all
        select cluster, j, -gap from find_gaps
    )
    group by cluster, place
),

spread_scores as (
    select cluster, number_runs.place, sum(rows[number_runs.place][runs + sum_scores.place] * score) as influence
    from sum_scores
    cross join invert
    cross join number_runs
    group by cluster, number_runs.place
),

join_strengths as (
    select
        number_runs.* exclude (place),
        ln(odds[place]) - list_avg(list_transform(odds, lambda x: ln(x))) as strength,
        spread_scores.cluster,
        spread_scores.influence
    from number_runs
    left join spread_scores using (place)
    left join fit_odds on true
)

select * from join_strengths;

comment on macro table internal.fit_strengths is 'fit_strengths(run_ids), a list of run ids of judges that compare pairs: one row per judged run and prompt, with the run''s Bradley–Terry strength and the prompt''s influence on it. Input of rank_judged.';
