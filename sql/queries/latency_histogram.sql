-- Grain: one row per run × latency metric × bin, at most 32 of equal width up to the 99th percentile and one above it.
with

-- Not materialized, here and below: a filter on run_id or metric must reach every use of the step.
list_values as not materialized (
    select run_id, 'ttft_s' as metric, ttft_s as value_s
    from request
    where status = 'ok' and phase = 'measured' and ttft_s is not null
    union all
    select run_id, 'tpot_s', tpot_s
    from request
    where status = 'ok' and phase = 'measured' and tpot_s is not null
    union all
    select run_id, 'e2e_s', e2e_s
    from request
    where status = 'ok' and phase = 'measured' and e2e_s is not null
),

span_metrics as (
    select
        run_id,
        metric,
        min(value_s) as least_s,
        quantile_cont(value_s, 0.99) as tail_s,
        greatest(tail_s - least_s, 0.00003) / 30 as least_width_s
    from list_values
    group by run_id, metric
),

-- The next of 1, 2, 5, 10 × a power of ten, so that bins end where an axis has its marks.
choose_width as (
    select
        *,
        power(10, floor(log10(least_width_s))) as power_s,
        power_s * case
            when least_width_s <= power_s * 1.000001 then 1
            when least_width_s <= power_s * 2 then 2
            when least_width_s <= power_s * 5 then 5
            else 10
        end as width_s,
        cast(floor(least_s / width_s) as bigint) as first_position,
        cast(floor(tail_s / width_s) as bigint) as last_position
    from span_metrics
),

list_bins as not materialized (
    select run_id, metric, width_s, last_position, unnest(range(first_position, last_position + 2)) as position
    from choose_width
),

count_values as (
    select
        list_values.run_id,
        list_values.metric,
        least(cast(floor(value_s / width_s) as bigint), last_position + 1) as position,
        count(*) as requests
    from list_values
    join choose_width on choose_width.run_id = list_values.run_id and choose_width.metric = list_values.metric
    group by all
),

fill_bins as (
    select
        list_bins.run_id,
        list_bins.metric,
        list_bins.position * width_s as from_s,
        case when list_bins.position <= last_position then (list_bins.position + 1) * width_s end as until_s,
        coalesce(count_values.requests, 0) as requests
    from list_bins
    left join count_values
        on count_values.run_id = list_bins.run_id
        and count_values.metric = list_bins.metric
        and count_values.position = list_bins.position
)

select * from fill_bins
where run_id = getvariable('run_id')
order by metric, from_s;
