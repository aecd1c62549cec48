-- Grain: one row per slice of a run's time, at most 61 of equal width, none left out.
with stamped as (
    select status, coalesce(arrived_at_s, finished_at_s) as arrived_at_s, finished_at_s, output_tokens
    from request
    where run_id = getvariable('run_id') and finished_at_s is not null
),

-- The next of 1, 2, 5, 10 × a power of ten, so that slices end where an axis has its marks.
width as (
    select
        min(arrived_at_s) as first_at_s,
        max(finished_at_s) as last_at_s,
        greatest(last_at_s - first_at_s, 0.06) / 60 as least_width_s,
        power(10, floor(log10(least_width_s))) as power_s,
        power_s * case
            when least_width_s <= power_s * 1.000001 then 1
            when least_width_s <= power_s * 2 then 2
            when least_width_s <= power_s * 5 then 5
            else 10
        end as width_s
    from stamped
),

slices as (
    select
        width_s,
        unnest(range(
            cast(floor(first_at_s / width_s) as bigint), cast(floor(last_at_s / width_s) as bigint) + 1
        )) as position
    from width
),

finished as (
    select
        cast(floor(finished_at_s / width_s) as bigint) as position,
        count(*) filter (status = 'ok') as finished_requests,
        count(*) filter (status = 'error') as error_requests,
        cast(sum(output_tokens) filter (status = 'ok') as bigint) as output_tokens
    from stamped, width
    group by position
),

-- Beginnings of slices change nothing, but cut every interval there.
changes as (
    select unnest([arrived_at_s, finished_at_s]) as at_s, unnest([1, -1]) as change, null as position
    from stamped
    where arrived_at_s < finished_at_s
    union all
    select position * width_s, 0, position from slices
),

moments as (
    select
        lead(at_s) over moments - at_s as stretch_s,
        sum(sum(change)) over moments as in_flight_requests,
        max(max(position)) over moments as position
    from changes
    group by at_s
    window moments as (order by at_s)
),

in_flight as (
    -- the last moment of a run has no interval, and nothing is in flight after it
    select position, coalesce(sum(in_flight_requests * stretch_s), 0) as in_flight_s from moments group by position
),

-- Each GPU's mean first, so that one with more samples in a slice does not count for more.
devices as (
    select position, sum(power_watts) as power_watts
    from (
        select cast(floor(at_s / width_s) as bigint) as position, avg(power_watts) as power_watts
        from raw.device_telemetry, width
        where run_id = getvariable('run_id')
        group by position, worker, device
    )
    group by position
),

engines as (
    select cast(floor(at_s / width_s) as bigint) as position, avg(kv_cache_usage_share) as kv_cache_usage_share
    from raw.telemetry, width
    where run_id = getvariable('run_id')
    group by position
)

select
    position * width_s as begins_at_s,
    (position + 1) * width_s as ends_at_s,
    coalesce(finished_requests, 0) as finished_requests,
    coalesce(error_requests, 0) as error_requests,
    coalesce(output_tokens, 0) as output_tokens,
    coalesce(finished_requests, 0) / width_s as requests_per_s,
    coalesce(output_tokens, 0) / width_s as output_tokens_per_s,
    in_flight_s / width_s as mean_in_flight_requests,
    power_watts,
    kv_cache_usage_share
from slices
left join finished using (position)
left join in_flight using (position)
left join devices using (position)
left join engines using (position)
order by position;
