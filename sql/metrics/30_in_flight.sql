-- Requests in flight: an exact sweep over [arrived_at_s, finished_at_s) of results and errors, averaged over the
-- seconds that throughput is of. Grain: one row per metric.
with changes as (
    select at_s, sum(change) as change
    from (
        select unnest([arrived_at_s, finished_at_s]) as at_s, unnest([1, -1]) as change
        from request
        where run_id = getvariable('run_id') and arrived_at_s < finished_at_s
    )
    group by at_s
),

sweep as (
    select at_s, lead(at_s) over (order by at_s) as until_s, sum(change) over (order by at_s) as in_flight from changes
),

measured as (
    select from_s, stretch.until_s as ends_at_s
    from stretch
    where run_id = getvariable('run_id')
    qualify kind = 'window' or kind = 'work' and count(*) filter (kind = 'window') over () = 0
),

sums as (
    select
        (select max(in_flight) from sweep) as most,
        sum(in_flight * (least(until_s, ends_at_s) - greatest(at_s, from_s))) as request_s,
        coalesce(sum(least(until_s, ends_at_s) - greatest(at_s, from_s)) filter (in_flight > 0), 0) as busy_s,
        count(*) as stretches,
        (select sum(ends_at_s - from_s) from measured) as measured_s
    from sweep
    join measured on at_s < ends_at_s and until_s > from_s
)

select unnest(metric_rows([
    ('in_flight_requests', 'mean', request_s / nullif(measured_s, 0), null, 'requests', null),
    ('in_flight_requests', 'max', most, null, 'requests', null),
    ('idle_s', 'total', case when stretches > 0 then greatest(0, measured_s - busy_s) end, null, 's', null)
]), recursive := true)
from sums;
