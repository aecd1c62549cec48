-- Grain: one row per run × worker × engine generation.
-- columns of: internal.engine_history
create or replace view main.engine as
with

-- Over samples in which the engine had requests.
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
),

join_use as (
    select
        engine_history.*
        replace (replace(reduced_arguments, '"window_requests"', '"max_concurrency"') as reduced_arguments)
        rename (window_requests as max_concurrency, last_window_requests as last_max_concurrency),
        output_tokens / nullif(engine_steps, 0) as output_tokens_per_step,
        case
            when ok_requests + error_requests > 0
            then output_tokens / nullif(engine_steps * engine_history.last_window_requests, 0)
        end as concurrency_used_share,
        add_samples.* exclude (run_id, worker, engine_generation)
    from internal.engine_history
    left join add_samples
        on add_samples.run_id = engine_history.run_id
        and add_samples.worker = engine_history.worker
        and add_samples.engine_generation = engine_history.engine_generation
)

select * from join_use;

comment on view main.engine is 'One row per run × worker × engine generation: its size, how and why it ended, what was reduced for the next one, and how full its batches and its KV cache were. An engine that left neither an event nor a sample nor an answer is not here.';
comment on column main.engine.max_concurrency is 'Maximum requests in flight when it opened. NULL in an open loop.';
comment on column main.engine.last_max_concurrency is 'Maximum requests in flight at its end. NULL likewise.';
comment on column main.engine.output_tokens_per_step is 'Mean output tokens per engine step: output_tokens / engine_steps. NULL without steps. An engine that crashed has steps whose tokens were lost, and so a lower mean.';
comment on column main.engine.concurrency_used_share is 'How much of last_max_concurrency an average engine step used: output_tokens_per_step / last_max_concurrency. A maximum above max_num_seqs keeps it below 1, as does one that grew late; speculative decoding may lift it above. NULL in an open loop, and for an engine that answered nothing.';
comment on column main.engine.busy_samples is 'Samples of telemetry with requests in the engine.';
comment on column main.engine.mean_kv_cache_usage_share is 'Share of the KV cache that was in use, mean over these samples, 0 to 1. NULL if the engine does not report it, like all columns below.';
comment on column main.engine.max_kv_cache_usage_share is 'Highest share over samples, 0 to 1. Near 1, requests are preempted or wait.';
comment on column main.engine.mean_running_requests is 'Requests that the scheduler ran, mean.';
comment on column main.engine.max_running_requests is 'The most.';
comment on column main.engine.mean_waiting_requests is 'Requests that waited in the scheduler, mean.';
comment on column main.engine.max_waiting_requests is 'The most.';
comment on column main.engine.preemptions is 'Preemptions up to the last of these samples, those of requests that were never answered included.';
