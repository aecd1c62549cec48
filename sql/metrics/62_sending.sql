-- How late an open-loop load was sent, and whether a streaming client read events late. A request is late beyond 10 ms
-- and 5% of the median TTFT: users do not notice less than the first, and less than the second changes no measurement.
-- Grain: one row per metric.
with tolerance as (
    select greatest(0.01, 0.05 * coalesce(
        median(ttft_s) filter (status = 'ok'), median(e2e_s) filter (status = 'ok'), 0
    )) as tolerance_s
    from request
    where run_id = getvariable('run_id') and phase = 'measured' and send_lag_s is not null
),

lags as (
    select
        count(*) as n,
        quantile_cont(send_lag_s, [0.5, 0.95, 0.99]::double[]) as lags_s,
        max(send_lag_s) as most_s,
        any_value(tolerance_s) as tolerance_s,
        count(*) filter (send_lag_s > tolerance_s) as late,
        quantile_cont(first_token_at_s - due_at_s, [0.5, 0.99]::double[]) filter (status = 'ok') as ttfts_s,
        quantile_cont(finished_at_s - due_at_s, [0.5, 0.99]::double[]) filter (status = 'ok') as e2es_s
    from request, tolerance
    where run_id = getvariable('run_id') and phase = 'measured' and send_lag_s is not null
),

loads as (
    select *, (select arrival <> 'all_at_once' from raw.loads where run_id = getvariable('run_id')) as has_rate
    from lags
    where n > 0
),

ticks as (
    select worker, count(*) as n, quantile_cont(lag_s, [0.5, 0.99]::double[]) as lags_s
    from (select worker, unnest(loop_lags_s) as lag_s from raw.telemetry where run_id = getvariable('run_id'))
    group by worker
),

-- A worker reads late above 5 ms and a tenth of its median TTFT (p99) or TPOT (p50).
clients as (
    select
        sum(n) as n,
        bool_and(not (
            lags_s[2] > 0.005 and coalesce(lags_s[2] > 0.1 * nullif(ttft_s, 0), false)
            or lags_s[1] > 0.005 and coalesce(lags_s[1] > 0.1 * nullif(tpot_s, 0), false)
        )) as kept_up
    from ticks
    left join (
        select worker, median(ttft_s) as ttft_s, median(tpot_s) as tpot_s
        from request
        where run_id = getvariable('run_id') and status = 'ok' and phase = 'measured'
        group by worker
    ) using (worker)
)

-- It kept up if at most 1% of requests were late, one in any case, so that at most the 99th percentile is affected.
select unnest(metric_rows([
    ('send_lag_s', 'p50', lags_s[1], n, 's', false),
    ('send_lag_s', 'p95', lags_s[2], n, 's', false),
    ('send_lag_s', 'p99', lags_s[3], n, 's', false),
    ('send_lag_s', 'max', most_s, n, 's', false),
    ('send_lag_tolerance_s', 'max', tolerance_s, n, 's', null),
    ('late_share', 'mean', late / n, n, 'share', false),
    ('kept_up', 'mean', case when has_rate then cast(late <= greatest(1, 0.01 * n) as integer) end, n, 'flag', true),
    ('due_ttft_s', 'p50', ttfts_s[1], n, 's', false),
    ('due_ttft_s', 'p99', ttfts_s[2], n, 's', false),
    ('due_e2e_s', 'p50', e2es_s[1], n, 's', false),
    ('due_e2e_s', 'p99', e2es_s[2], n, 's', false)
]), recursive := true)
from loads
union all
select unnest(metric_rows([
    ('client_kept_up', 'mean', cast(kept_up as integer), n, 'flag', true)
]), recursive := true)
from clients
where n > 0;
