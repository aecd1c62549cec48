-- Grain: one row per run × worker with a streaming engine.
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
with

list_ticks as (
    select run_id, worker, unnest(loop_lags_s) as lag_s
    from raw.telemetry
),

rank_ticks as (
    select
        run_id,
        worker,
        count(*) as ticks,
        quantile_cont(lag_s, [0.5, 0.99]::double[]) as lags_s,
        max(lag_s) as max_s
    from list_ticks
    group by run_id, worker
),

take_medians as (
    select run_id, worker, median(ttft_s) as ttft_p50_s, median(tpot_s) as tpot_p50_s
    from request
    where status = 'ok' and phase = 'measured'
    group by run_id, worker
),

judge_clients as (
    select
        rank_ticks.run_id,
        rank_ticks.worker,
        rank_ticks.ticks,
        rank_ticks.lags_s[1] as p50_s,
        rank_ticks.lags_s[2] as p99_s,
        rank_ticks.max_s,
        rank_ticks.lags_s[2] / nullif(take_medians.ttft_p50_s, 0) as ttft_share,
        rank_ticks.lags_s[1] / nullif(take_medians.tpot_p50_s, 0) as tpot_share,
        not (
            rank_ticks.lags_s[2] > 0.005 and coalesce(ttft_share > 0.1, false)
            or rank_ticks.lags_s[1] > 0.005 and coalesce(tpot_share > 0.1, false)
        ) as is_healthy
    from rank_ticks
    left join take_medians
        on take_medians.run_id = rank_ticks.run_id
        and take_medians.worker = rank_ticks.worker
)

select * from judge_clients
where run_id = getvariable('run_id')
order by p99_s desc;
