-- Grain: one row per run × whole second since its start, none left out.
create or replace view main.timeline as
with

-- Not materialized, here and below: a filter on run_id must reach every use of the step.
select_stamped as not materialized (
    select run_id, status, arrived_at_s, finished_at_s, output_tokens, e2e_s
    from internal.stg_requests
    where finished_at_s is not null
),

span_runs as (
    select
        run_id,
        least(0, cast(floor(min(coalesce(arrived_at_s, finished_at_s))) as bigint)) as first_second,
        cast(floor(max(finished_at_s)) as bigint) as last_second
    from select_stamped
    group by run_id
),

list_seconds as not materialized (
    select run_id, unnest(range(first_second, last_second + 1)) as second
    from span_runs
),

count_finished as (
    select
        run_id,
        cast(floor(finished_at_s) as bigint) as second,
        count(*) filter (status = 'ok') as finished_requests,
        count(*) filter (status = 'error') as error_requests,
        coalesce(sum(output_tokens) filter (status = 'ok'), 0) as output_tokens,
        avg(e2e_s) filter (status = 'ok') as mean_e2e_s
    from select_stamped
    group by all
),

-- Ticks of the clock change nothing, but cut every interval at the second's end.
mark_changes as (
    select run_id, arrived_at_s as at_s, 1 as change_requests from select_stamped where arrived_at_s < finished_at_s
    union all
    select run_id, finished_at_s, -1 from select_stamped where arrived_at_s < finished_at_s
    union all
    select run_id, second, 0 from list_seconds
),

sweep_changes as (
    select
        run_id,
        at_s,
        lead(at_s) over moments - at_s as stretch_s,
        sum(sum(change_requests)) over moments as in_flight_requests
    from mark_changes
    group by run_id, at_s
    window moments as (partition by run_id order by at_s)
),

average_in_flight as (
    select
        run_id,
        cast(floor(at_s) as bigint) as second,
        -- the last moment of a run has no interval, and nothing is in flight after it
        coalesce(sum(in_flight_requests * stretch_s), 0) as mean_in_flight_requests
    from sweep_changes
    group by all
),

-- Each GPU's mean first, so that one with more samples in a second does not count for more.
average_devices as (
    select run_id, cast(floor(at_s) as bigint) as second, worker, device, avg(power_watts) as power_watts
    from raw.device_telemetry
    group by all
),

add_devices as (
    select run_id, second, sum(power_watts) as power_watts
    from average_devices
    group by run_id, second
),

average_engines as (
    select
        run_id,
        cast(floor(at_s) as bigint) as second,
        avg(kv_cache_usage_share) as kv_cache_usage_share,
        avg(waiting_requests) as mean_waiting_requests
    from raw.telemetry
    group by all
)

select
    run_id,
    second,
    coalesce(finished_requests, 0) as finished_requests,
    coalesce(error_requests, 0) as error_requests,
    cast(coalesce(output_tokens, 0) as bigint) as output_tokens,
    mean_in_flight_requests,
    mean_e2e_s,
    power_watts,
    kv_cache_usage_share,
    mean_waiting_requests
from list_seconds
left join count_finished using (run_id, second)
left join average_in_flight using (run_id, second)
left join add_devices using (run_id, second)
left join average_engines using (run_id, second);

comment on view main.timeline is 'One row per run × whole second from the run''s start to the last finished request, none left out: a second in which nothing finished counts 0. Loading and warm-up are its first seconds; a rebuilt engine and the pause between two attempts are seconds of zeros in between.';
comment on column main.timeline.second is 'Whole seconds since the run''s start: k stands for [k, k + 1).';
comment on column main.timeline.finished_requests is 'Ok requests that finished in this second.';
comment on column main.timeline.error_requests is 'Error rows that finished in this second. Errors without finished_at_s are nowhere in the timeline; see request.';
comment on column main.timeline.output_tokens is 'Output tokens of the ok requests that finished in this second, booked when the request finishes.';
comment on column main.timeline.mean_in_flight_requests is 'Requests in flight, averaged over the second: sum of in-flight × seconds it held / 1 s, from the exact sweep of concurrency.';
comment on column main.timeline.mean_e2e_s is 'Mean end-to-end latency of the ok requests that finished in this second, seconds. NULL if none did.';
comment on column main.timeline.power_watts is 'Power of all GPUs together, watts: the sum of each one''s mean over its samples in this second. NULL without a sample.';
comment on column main.timeline.kv_cache_usage_share is 'Share of the KV cache that was in use, mean over the samples of all engines in this second, 0 to 1. NULL without a sample, like the next.';
comment on column main.timeline.mean_waiting_requests is 'Requests that waited in a scheduler, mean over these samples.';
