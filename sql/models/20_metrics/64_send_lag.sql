-- Grain: one row per run in which requests were due at times of their own: of an open-loop load.
--
-- A generator that sends late measures a load that is lighter and smoother than the one asked for, and starts its clock
-- when the user has long been waiting. Measuring from due_at_s instead gives the latency that users would have seen:
-- the correction for coordinated omission.
--
-- A request is late if it is sent more than 10 ms and more than 5% of the run's median TTFT after it was due: users
-- do not notice less than the first, and less than the second does not change the measurement. The generator kept up
-- if at most 1% of requests are late (one in any case), so that at most the 99th percentile is affected.
create or replace view internal.send_lag as
with

-- Not materialized: a filter on run_id must reach every use of the step.
select_due as not materialized (
    select
        run_id,
        send_lag_s,
        case when status = 'ok' then ttft_s end as ttft_s,
        case when status = 'ok' then e2e_s end as e2e_s,
        case when status = 'ok' then first_token_at_s - due_at_s end as due_ttft_s,
        case when status = 'ok' then finished_at_s - due_at_s end as due_e2e_s
    from stg_requests
    where phase = 'measured' and send_lag_s is not null
),

rank_lags as (
    select
        run_id,
        count(*) as requests,
        quantile_cont(send_lag_s, [0.5, 0.95, 0.99]::double[]) as lags_s,
        max(send_lag_s) as max_s,
        greatest(0.01, 0.05 * coalesce(median(ttft_s), median(e2e_s), 0)) as tolerance_s,
        quantile_cont(due_ttft_s, [0.5, 0.99]::double[]) as due_ttfts_s,
        quantile_cont(due_e2e_s, [0.5, 0.99]::double[]) as due_e2es_s
    from select_due
    group by run_id
),

count_late as (
    select select_due.run_id, count(*) filter (send_lag_s > tolerance_s) as late_requests
    from select_due
    join rank_lags on rank_lags.run_id = select_due.run_id
    group by select_due.run_id
),

judge_generators as (
    select
        rank_lags.run_id,
        rank_lags.requests,
        rank_lags.lags_s[1] as p50_s,
        rank_lags.lags_s[2] as p95_s,
        rank_lags.lags_s[3] as p99_s,
        rank_lags.max_s,
        rank_lags.tolerance_s,
        count_late.late_requests,
        count_late.late_requests / rank_lags.requests as late_share,
        rank_lags.due_ttfts_s[1] as due_ttft_p50_s,
        rank_lags.due_ttfts_s[2] as due_ttft_p99_s,
        rank_lags.due_e2es_s[1] as due_e2e_p50_s,
        rank_lags.due_e2es_s[2] as due_e2e_p99_s,
        case
            when loads.arrival <> 'all_at_once' then late_requests <= greatest(1, 0.01 * rank_lags.requests)
        end as kept_up
    from rank_lags
    join count_late on count_late.run_id = rank_lags.run_id
    left join raw.loads on loads.run_id = rank_lags.run_id
)

select * from judge_generators;

comment on view internal.send_lag is 'One row per run of an open-loop load: how late requests were sent, whether the generator kept up with its schedule, and the latencies that users would have felt had it done so. Over measured requests, results and errors.';
comment on column internal.send_lag.run_id is 'The run.';
comment on column internal.send_lag.requests is 'Measured requests that were due and sent.';
comment on column internal.send_lag.p50_s is 'Median of send_lag_s, seconds: sent_at_s − due_at_s.';
comment on column internal.send_lag.p95_s is 'Its 95th percentile, seconds.';
comment on column internal.send_lag.p99_s is 'Its 99th percentile, seconds.';
comment on column internal.send_lag.max_s is 'Its highest value, seconds.';
comment on column internal.send_lag.tolerance_s is 'Lag above which a request is late, in seconds: 10 ms, or 5% of the run''s median ttft_s if that is longer (of its median e2e_s if no first token has a timestamp).';
comment on column internal.send_lag.late_requests is 'Requests with send_lag_s > tolerance_s.';
comment on column internal.send_lag.late_share is 'late_requests / requests, 0 to 1.';
comment on column internal.send_lag.due_ttft_p50_s is 'Median of first_token_at_s − due_at_s over ok requests, seconds: time to first token from when the request should have been sent. NULL if no request has the stamps, as those that follow.';
comment on column internal.send_lag.due_ttft_p99_s is 'Its 99th percentile, seconds.';
comment on column internal.send_lag.due_e2e_p50_s is 'Median of finished_at_s − due_at_s over ok requests, seconds.';
comment on column internal.send_lag.due_e2e_p99_s is 'Its 99th percentile, seconds.';
comment on column internal.send_lag.kept_up is 'Whether the generator kept up: at most 1% of requests were late, or one. If not, the engine had a lighter load than specified, and its latencies look too good: read the due_… ones. NULL for all_at_once, whose requests are all due at the same moment.';
