-- Grain: one row per judged run.
--
-- `run_ids` is a list of run ids of judges that compare pairs of answers.
--
-- run_id: the judged run.
-- model: its model, as the spec names it. NULL if the run is not in this database.
-- comparisons: comparisons with answers of other runs that were judged in both orders.
-- prompts: prompts of these comparisons.
-- won_share: share of comparisons won, ties counting half. It depends on who the others are; strength does not.
-- strength: Bradley–Terry strength, mean 0, a difference of 1 being odds of e = 2.7 to 1; half a win and half a loss
--     are added to each pair of runs. NULL unless comparisons link every run to every other.
-- low: lower end of its 95% interval, clustered by prompt. NULL for fewer than five prompts.
-- high: upper end.
-- best_rank: 1 + the number of runs that are better by more than chance; see compare_strengths.
-- worst_rank: the number of runs − those that are worse by more than chance.
-- is_winner: whether it is better than every other run by more than chance.
create or replace macro main.rank_judged(run_ids) as table
with

sum_influence as (
    select
        run_id,
        any_value(comparisons) as comparisons,
        any_value(prompts) as prompts,
        any_value(won_share) as won_share,
        any_value(strength) as strength,
        sqrt(sum(influence ** 2)) as root
    from internal.fit_strengths(run_ids)
    group by run_id
),

compare_pairs as materialized (
    select candidate, baseline, verdict from internal.compare_strengths(run_ids)
),

list_sides as (
    select candidate as run_id, verdict = 'better' as is_above, verdict = 'worse' as is_below from compare_pairs
    union all
    select baseline, verdict = 'worse', verdict = 'better' from compare_pairs
),

count_sides as (
    select
        run_id,
        1 + count(*) filter (is_below) as best_rank,
        1 + count(*) - count(*) filter (is_above) as worst_rank,
        bool_and(is_above) as is_winner
    from list_sides
    group by run_id
),

join_ranks as (
    select
        sum_influence.run_id,
        runs.model,
        sum_influence.comparisons,
        sum_influence.prompts,
        sum_influence.won_share,
        sum_influence.strength,
        case
            when prompts >= 5 then strength - internal.t_quantile(prompts - 1) * root * sqrt(prompts / (prompts - 1))
        end as low,
        case
            when prompts >= 5 then strength + internal.t_quantile(prompts - 1) * root * sqrt(prompts / (prompts - 1))
        end as high,
        count_sides.best_rank,
        count_sides.worst_rank,
        count_sides.is_winner
    from sum_influence
    join count_sides using (run_id)
    left join raw.runs on runs.run_id = sum_influence.run_id
    order by strength desc nulls last, won_share desc, sum_influence.run_id
)

select * from join_ranks;

comment on macro table main.rank_judged is 'rank_judged(run_ids), a list of run ids of judges that compare pairs: one row per judged run, with its Bradley–Terry strength, 95% interval and rank as an interval: 1 to 3 if the verdicts cannot separate the first three.';
