-- Percentiles of latencies over measured ok requests. For their intervals: in 20 batches of neighbors, in order of
-- arrival, how many values are at or below each percentile. Grain: one row per latency × batch.
with ordered as (
    select
        [ttft_s, queue_s, prefill_s, decode_s, tpot_s, e2e_s] as latencies,
        [
            count(ttft_s) over arrivals, count(queue_s) over arrivals, count(prefill_s) over arrivals,
            count(decode_s) over arrivals, count(tpot_s) over arrivals, count(e2e_s) over arrivals
        ] as places
    from request
    where run_id = getvariable('run_id') and status = 'ok' and phase = 'measured'
    window arrivals as (order by arrived_at_s, request_id rows between unbounded preceding and current row)
),

named as (
    select
        unnest(['ttft_s', 'queue_s', 'prefill_s', 'decode_s', 'tpot_s', 'e2e_s']) as metric,
        unnest(latencies) as value,
        unnest(places) - 1 as place
    from ordered
),

ranked as (
    select
        metric,
        quantile_cont(value, [0.5, 0.9, 0.95, 0.99, 0.999]::double[]) as percentiles,
        count(value) // 20 as size,
        count(value) % 20 as larger
    from named
    group by metric
)

select
    metric,
    case
        when place < larger * (size + 1) then place // (size + 1)
        else larger + (place - larger * (size + 1)) // size
    end as batch,
    any_value(percentiles) as percentiles,
    count(*) as n,
    [
        count(*) filter (value <= percentiles[1]), count(*) filter (value <= percentiles[2]),
        count(*) filter (value <= percentiles[3]), count(*) filter (value <= percentiles[4]),
        count(*) filter (value <= percentiles[5])
    ] as below
from named
join ranked using (metric)
where value is not null
group by metric, batch
order by metric, batch;
