-- Grain: one row per run with a load × rate × service level objective, if any.
--
-- The rates in 20 equal windows of the time of sending vary with the correlation of what finishes in them: the method
-- of batch means (Schmeiser 1982), with an AR(1) of the windows as in latency_percentile.
create or replace view internal.rate_interval as
with

span_loads as (
    select
        run_id,
        loads.arrival = 'concurrency' as is_closed,
        min(begins_at_s) as begins_at_s,
        max(ends_at_s) as ends_at_s
    from raw.loads
    join load_stretch using (run_id)
    where loads.arrival <> 'all_at_once' and stretch_s > 0 and (has_windows or loads.arrival <> 'concurrency')
    group by all
),

list_finished as (
    select run_id, null as slo, finished_at_s, prompt_tokens, output_tokens
    from stg_requests
    where is_finished
    union all
    select run_id, slo, finished_at_s, null, output_tokens
    from judged_request
    where is_finished and is_good
),

add_windows as (
    select
        run_id,
        slo,
        is_closed,
        least(19, cast(floor(20 * (finished_at_s - begins_at_s) / (ends_at_s - begins_at_s)) as bigint)) as number,
        count(*) as requests,
        sum(output_tokens) as output_tokens,
        sum(prompt_tokens + output_tokens) as total_tokens
    from list_finished
    join span_loads using (run_id)
    where finished_at_s between begins_at_s and ends_at_s
    group by all
),

list_rates as (
    select run_id, slo, named.metric, map(list(number), list(cast(named.amount as double))) as amounts
    from add_windows, lateral (values
        (case when slo is null then 'requests_per_s' else 'good_requests_per_s' end, requests),
        (case when slo is null then 'output_tokens_per_s' else 'good_output_tokens_per_s' end, output_tokens),
        (case when slo is null then 'total_tokens_per_s' end, total_tokens)
    ) as named(metric, amount)
    where named.metric is not null
    group by run_id, slo, is_closed, named.metric
    having sum(requests) >= case when is_closed then 200 else 2000 end
),

center_windows as (
    select
        run_id,
        slo,
        metric,
        list_transform(
            range(20), lambda number: coalesce(amounts[number], 0) * 20 / list_sum(map_values(amounts)) - 1
        ) as deviations,
        list_sum(list_transform(deviations, lambda one: one ** 2)) as squares,
        list_sum(list_transform(range(1, 20), lambda place: deviations[place] * deviations[place + 1])) as products
    from list_rates
),

find_widths as (
    select
        run_id,
        slo,
        metric,
        greatest(0, coalesce(products / nullif(squares, 0), 0) + 1 / 20 + 1 / sqrt(20)) as correlation,
        case
            when correlation < 1
            then internal.t_quantile(19) * sqrt(squares / 19 / 20 * (1 + correlation) / (1 - correlation))
        end as half_share
    from center_windows
),

keep_narrow as (
    select run_id, slo, metric, half_share
    from find_widths
    where half_share < 1
)

select * from keep_narrow;

comment on view internal.rate_interval is 'One row per run with a load × rate × service level objective, if any: half of the 95% interval of throughput and goodput, from the rates in 20 windows of the time of sending. Not for fewer than 200 results in a closed loop, and 2,000 in an open one.';
comment on column internal.rate_interval.run_id is 'The run.';
comment on column internal.rate_interval.slo is 'Name of the objective. NULL for rates of all results.';
comment on column internal.rate_interval.metric is 'The rate, as in metric_values.';
comment on column internal.rate_interval.half_share is 'Half of the interval as a share of the rate: t × sqrt(V × (1 + r) / (1 − r)), t with 19 degrees of freedom, V the variance of the windows'' rates over their mean / 20, r the correlation of neighboring windows + 1/20 + 1/√20, at least 0. A rate with more than 1 has no row.';
