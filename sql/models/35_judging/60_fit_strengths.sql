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
-- strength: maximum likelihood on the scale of natural logarithms of odds; the mean over runs is 0. NULL unless
--     comparisons link every run to every other.
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

-- Newton's method in one row. k = 0 builds the matrix [information + 1 / runs | identity], each k up to the number of
-- runs eliminates a column (Gauss and Jordan; the matrix is positive definite), after which the right half is the
-- inverse, and the next k moves all strengths, by at most 2.
move_strengths as (
    select
        0 as round,
        0 as k,
        list_transform(wins, lambda w: 0.0::double) as strengths,
        cast(null as double[][]) as rows,
        1.0::double as change
    from build_matrix
    union all
    select
        round + cast(k > runs as integer),
        case when k > runs then 0 else k + 1 end,
        case
            when k > runs then list_transform(
                strengths, lambda s, i: s + move[i] / greatest(1, list_max(list_transform(move, lambda m: abs(m))) / 2)
            )
            else strengths
        end,
        case
            when k = 0 then list_transform(games, lambda row, i: list_concat(
                list_transform(row, lambda n, j: 1 / runs + case
                    when i <> j then -n / (2 + exp(strengths[i] - strengths[j]) + exp(strengths[j] - strengths[i]))
                    else list_sum(list_transform(row, lambda m, l:
                        m / (2 + exp(strengths[i] - strengths[l]) + exp(strengths[l] - strengths[i]))
                    ))
                end),
                list_transform(row, lambda n, j: case when i = j then 1.0::double else 0.0::double end)
            ))
            when k <= runs then list_transform(rows, lambda row, i: list_transform(row, lambda x, j: case
                when i = k then x / rows[k][k]
                else x - row[k] * rows[k][j] / rows[k][k]
            end))
            else rows
        end,
        case when k > runs then list_max(list_transform(move, lambda m: abs(m))) else change end
    from (
        select
            *,
            list_transform(rows, lambda row: list_sum(list_transform(slopes, lambda g, j: row[runs + j] * g))) as move
        from (
            select
                *,
                case
                    when k > runs then list_transform(games, lambda row, i: wins[i] - list_sum(
                        list_transform(row, lambda n, j: n / (1 + exp(strengths[j] - strengths[i])))
                    ))
                end as slopes
            from move_strengths
            cross join build_matrix
            where change > 1e-10 and round < 200
        )
    )
),

read_fit as materialized (
    select strengths, rows, len(strengths) as runs from move_strengths where change <= 1e-10
),

find_gaps as (
    select cluster, i, j, value - 1 / (1 + exp(strengths[j] - strengths[i])) as gap
    from place_pairs
    cross join read_fit
    union all
    select
        concat_ws(' ', 'prior', i, j, outcome),
        i,
        j,
        sqrt(0.5) * (outcome - 1 / (1 + exp(strengths[j] - strengths[i])))
    from sum_pairs
    cross join read_fit
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
    cross join read_fit
    cross join number_runs
    group by cluster, number_runs.place
),

join_strengths as (
    select
        number_runs.* exclude (place),
        strengths[place] as strength,
        spread_scores.cluster,
        spread_scores.influence
    from number_runs
    left join spread_scores using (place)
    left join read_fit on true
)

select * from join_strengths;

comment on macro table internal.fit_strengths is 'fit_strengths(run_ids), a list of run ids of judges that compare pairs: one row per judged run and prompt, with the run''s Bradley–Terry strength and the prompt''s influence on it. Input of rank_judged.';
