-- Grain: one row per run × worker × engine generation with samples in which it had requests.
create or replace view internal.scheduler_use as
with

add_samples as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) as busy_samples,
        avg(kv_cache_usage_share) as mean_kv_cache_usage_share,
        max(kv_cache_usage_share) as max_kv_cache_usage_share,
        avg(running_requests) as mean_running_requests,
        max(running_requests) as max_running_requests,
        avg(waiting_requests) as mean_waiting_requests,
        max(waiting_requests) as max_waiting_requests,
        max(preemptions) as preemptions
    from raw.telemetry
    where in_flight_requests > 0
    group by run_id, worker, engine_generation
)

select * from add_samples;

comment on view internal.scheduler_use is 'One row per run × worker × engine generation: how full its KV cache and its batches were, by vLLM''s own account, over the samples in which it had requests.';
comment on column internal.scheduler_use.run_id is 'The run.';
comment on column internal.scheduler_use.worker is 'The worker that owned the engine.';
comment on column internal.scheduler_use.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column internal.scheduler_use.busy_samples is 'Samples of telemetry with requests in the engine.';
comment on column internal.scheduler_use.mean_kv_cache_usage_share is 'Share of the KV cache that was in use, mean over these samples, 0 to 1. NULL if the engine does not report it, like all columns below.';
comment on column internal.scheduler_use.max_kv_cache_usage_share is 'Highest share over samples, 0 to 1. Near 1, requests are preempted or wait.';
comment on column internal.scheduler_use.mean_running_requests is 'Requests that the scheduler ran, mean.';
comment on column internal.scheduler_use.max_running_requests is 'The most.';
comment on column internal.scheduler_use.mean_waiting_requests is 'Requests that waited in the scheduler, mean.';
comment on column internal.scheduler_use.max_waiting_requests is 'The most.';
comment on column internal.scheduler_use.preemptions is 'Preemptions up to the last of these samples, those of requests that were never answered included.';
