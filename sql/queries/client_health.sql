-- Grain: one row per worker with a streaming engine of a run.
--
-- A load generator measures itself, too: while its event loop is busy, an event that has arrived waits to be read, and
-- its stamp is late. How long it waits cannot be read from a socket. A timer of 10 ms waits in the same way: the loop
-- looks at sockets and timers in one turn, so the timer is as late as an event that arrives at a random moment. All
-- ticks that a held-up loop misses count, or long delays would weigh as little as short ones.
--
-- A request's first event waits once, and later events move tokens by the differences of their waits. So TTFT is
-- compared with the 99th percentile, and TPOT, a mean over many events, with the median. Waits below 5 ms do not warn:
-- timers themselves are up to a millisecond late. Stamps of tokens of the async backend are made in the engine, and are
-- not touched.
with ticks as (
    select
        worker,
        count(*) as ticks,
        quantile_cont(lag_s, 0.5) as p50_s,
        quantile_cont(lag_s, 0.99) as p99_s,
        max(lag_s) as max_s
    from (select worker, unnest(loop_lags_s) as lag_s from raw.telemetry where run_id = getvariable('run_id'))
    group by worker
),

medians as (
    select worker, median(ttft_s) as ttft_p50_s, median(tpot_s) as tpot_p50_s
    from request
    where run_id = getvariable('run_id') and status = 'ok' and phase = 'measured'
    group by worker
)

select
    ticks.*,
    p99_s / nullif(ttft_p50_s, 0) as ttft_share,
    p50_s / nullif(tpot_p50_s, 0) as tpot_share,
    not (
        p99_s > 0.005 and coalesce(ttft_share > 0.1, false)
        or p50_s > 0.005 and coalesce(tpot_share > 0.1, false)
    ) as is_healthy
from ticks
left join medians using (worker)
order by p99_s desc;
