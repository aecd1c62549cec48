-- Grain: one row per part of a judged run: the run itself, each run that judges its answers, and the sum of these.
--
-- part: model, judge or judges.
-- rubric: see judge_run. NULL unless part is judge.
-- run_id: the run, or the judge's run. NULL for the sum.
-- model: its model. NULL for the sum.
-- state: state of its run; a failed one cost something, too. NULL for the sum.
-- load_s: time to load engines; see metric_value.
-- duration_s: generation window; see metric_value.
-- output_tokens: tokens that its model wrote, of ok requests.
-- cost: cost of the whole run, including loading and downtime. NULL without a price, and for a sum of two currencies.
-- currency: currency of cost.
create or replace macro internal.show_judging_cost(run) as table
with

list_runs as (
    select 0 as place, 'model' as part, null as rubric, run_id, model, state, started_at
    from raw.runs
    where run_id = run
    union all
    select 1, 'judge', rubric, judge_run_id, model, state, started_at
    from internal.judge_run
    where judge_run.run_id = run
),

take_totals as (
    select
        run_id,
        max(value) filter (metric = 'load_s') as load_s,
        max(value) filter (metric = 'duration_s') as duration_s,
        cast(max(value) filter (metric = 'output_tokens') as bigint) as output_tokens,
        max(value) filter (metric = 'cost') as cost,
        max(unit) filter (metric = 'cost') as currency
    from raw.metric_values
    where statistic = 'total' and detail is null and run_id in (select run_id from list_runs)
    group by run_id
),

join_totals as (
    select list_runs.*, take_totals.* exclude (run_id)
    from list_runs
    left join take_totals using (run_id)
),

add_judges as (
    from join_totals
    union all by name
    select
        2 as place,
        'judges' as part,
        sum(load_s) as load_s,
        sum(duration_s) as duration_s,
        cast(sum(output_tokens) as bigint) as output_tokens,
        case when count(cost) = count(*) and count(distinct currency) = 1 then sum(cost) end as cost,
        any_value(currency) as currency
    from join_totals
    where part = 'judge'
),

name_columns as (
    select part, rubric, run_id, model, state, load_s, duration_s, output_tokens, cost, currency
    from add_judges
    order by place, rubric, started_at, run_id
)

select * from name_columns;

comment on macro table internal.show_judging_cost is 'show_judging_cost(run): time and cost of a run, of each run that judges its answers, and of all these judges.';
