-- Grain: one row per latency of a run × bin, at most 32 of equal width up to the 99th percentile and one above it.
with latencies as (
    select unnest(['ttft_s', 'tpot_s', 'e2e_s']) as metric, unnest([ttft_s, tpot_s, e2e_s]) as value_s
    from request
    where run_id = getvariable('run_id') and status = 'ok' and phase = 'measured'
),

-- The next of 1, 2, 5, 10 × a power of ten, so that bins end where an axis has its marks.
widths as (
    select
        metric,
        quantile_cont(value_s, 0.99) as tail_s,
        greatest(tail_s - min(value_s), 0.00003) / 30 as least_width_s,
        power(10, floor(log10(least_width_s))) as power_s,
        power_s * case
            when least_width_s <= power_s * 1.000001 then 1
            when least_width_s <= power_s * 2 then 2
            when least_width_s <= power_s * 5 then 5
            else 10
        end as width_s,
        cast(floor(min(value_s) / width_s) as bigint) as first_position,
        cast(floor(tail_s / width_s) as bigint) as last_position
    from latencies
    where value_s is not null
    group by metric
),

bins as (
    select metric, width_s, last_position, unnest(range(first_position, last_position + 2)) as position from widths
),

counts as (
    select metric, least(cast(floor(value_s / width_s) as bigint), last_position + 1) as position, count(*) as requests
    from latencies
    join widths using (metric)
    where value_s is not null
    group by metric, position
)

select
    metric,
    position * width_s as from_s,
    case when position <= last_position then (position + 1) * width_s end as until_s,
    coalesce(requests, 0) as requests
from bins
left join counts using (metric, position)
order by metric, position;
