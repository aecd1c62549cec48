-- Grain: one row per run × worker × engine generation.
-- An engine's work is derived from its results and its end. Only results count, as in every throughput, although a
-- crashed engine also worked on the requests that it lost.
create or replace view main.engine as
with

events as (
    select
        run_id,
        worker,
        engine_generation,
        min(attempt) as attempt,
        max(at_s) as last_event_at_s,
        min(at_s) filter (event = 'opened') as opened_at_s,
        max(duration_s) filter (event = 'opened') as load_s,
        arg_min(details_json, at_s) filter (event = 'opened') as opened_json,
        min(at_s) filter (event = 'warmed_up') as warmed_up_at_s,
        max(duration_s) filter (event = 'warmed_up') as warmup_s,
        min(at_s) filter (event = 'failed') as failed_at_s,
        arg_min(message, at_s) filter (event = 'failed') as failure_message,
        arg_min(details_json, at_s) filter (event = 'failed') as failed_json,
        max(at_s) filter (event = 'closed') as closed_at_s,
        count(*) filter (event = 'reduced') as reductions,
        arg_max(details_json, at_s) filter (event = 'reduced') as reduced_arguments,
        arg_max(details_json ->> '$.window_requests.to', at_s) filter (event = 'grown') as grown_window_requests,
        count(*) filter (event = 'isolated') as isolated_requests,
        arg_max(details_json, at_s) filter (event = 'restored') as restored_arguments
    from raw.engine_events
    where event <> 'idle'
    group by run_id, worker, engine_generation
),

-- Busy samples: those with requests in the engine.
samples as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) as telemetry_samples,
        max(engine_steps) as engine_steps,
        max(output_tokens) as output_tokens,
        max(at_s) as last_sample_at_s,
        min(at_s) filter (in_flight_requests > 0) as first_busy_at_s,
        max(at_s) filter (in_flight_requests > 0) as last_busy_at_s,
        nullif(count(*) filter (in_flight_requests > 0), 0) as busy_samples,
        avg(kv_cache_usage_share) filter (in_flight_requests > 0) as mean_kv_cache_usage_share,
        max(kv_cache_usage_share) filter (in_flight_requests > 0) as max_kv_cache_usage_share,
        avg(running_requests) filter (in_flight_requests > 0) as mean_running_requests,
        max(running_requests) filter (in_flight_requests > 0) as max_running_requests,
        avg(waiting_requests) filter (in_flight_requests > 0) as mean_waiting_requests,
        max(waiting_requests) filter (in_flight_requests > 0) as max_waiting_requests,
        max(preemptions) filter (in_flight_requests > 0) as preemptions
    from raw.telemetry
    group by run_id, worker, engine_generation
),

answers as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) filter (status = 'ok') as ok_requests,
        count(*) filter (status = 'error') as error_requests,
        sum(output_tokens) filter (status = 'ok') as ok_output_tokens,
        min(max_concurrency) as first_max_concurrency,
        max(max_concurrency) as last_max_concurrency,
        min(arrived_at_s) as first_arrived_at_s,
        max(finished_at_s) as last_finished_at_s,
        min(arrived_at_s) filter (status = 'ok') as first_ok_arrived_at_s,
        max(finished_at_s) filter (status = 'ok') as last_ok_finished_at_s
    from request
    where status in ('ok', 'error') and worker <> 'prepare'
    group by run_id, worker, engine_generation
),

joined as (
    select
        * exclude (attempt),
        -- A run that was started once has one attempt, even for an engine without events.
        coalesce(events.attempt, case when attempts = 1 then 1 end) as attempt,
        -- An engine that failed is closed too, so failing comes first.
        case
            when failed_at_s is not null then 'failed'
            when closed_at_s is not null then 'closed'
            when last_event_at_s is null then null
            when state = 'running' and attempts = coalesce(events.attempt, 1)
                and engine_generation = max(engine_generation) over (partition by run_id, worker) then 'running'
            else 'vanished'
        end as ending,
        try_cast(failed_json ->> '$.in_flight_requests' as bigint) as failed_requests,
        coalesce(ok_requests, 0) + coalesce(error_requests, 0) as answered_requests
    from events
    full join samples using (run_id, worker, engine_generation)
    full join answers using (run_id, worker, engine_generation)
    left join (select run_id, state, attempt as attempts from raw.runs) as runs using (run_id)
),

works as (
    select
        *,
        case
            when first_ok_arrived_at_s is not null then first_ok_arrived_at_s
            when ending in ('failed', 'vanished') then coalesce(
                first_arrived_at_s, warmed_up_at_s, first_busy_at_s, case when failed_requests > 0 then opened_at_s end
            )
        end as began_at_s,
        case
            when ending = 'failed' and coalesce(failed_requests > 0, true)
                then greatest(failed_at_s, last_ok_finished_at_s)
            when ending = 'vanished' then greatest(last_busy_at_s, last_ok_finished_at_s)
            else last_ok_finished_at_s
        end as stopped_at_s
    from joined
),

lives as (
    select
        *,
        case ending
            when 'failed' then failed_at_s
            when 'closed' then closed_at_s
            when 'vanished' then greatest(last_event_at_s, last_sample_at_s, last_finished_at_s)
        end as ended_at_s,
        case when stopped_at_s is not null then began_at_s end as work_began_at_s,
        case when began_at_s is not null then stopped_at_s end as work_ended_at_s,
        case when attempt is not null then row_number() over engines > 1 end as is_rebuild,
        count(restored_arguments) over (engines rows between unbounded preceding and 1 preceding) as restorations
    from works
    window engines as (partition by run_id, worker, attempt order by engine_generation)
)

select
    run_id,
    worker,
    engine_generation,
    attempt,
    is_rebuild,
    cast(coalesce(sum(reductions) over (
        partition by run_id, worker, attempt, restorations
        order by engine_generation
        rows between unbounded preceding and 1 preceding
    ), 0) as bigint) as earlier_reductions,
    ending,
    case
        when ending = 'failed'
            then coalesce(failed_json ->> '$.phase', case when opened_at_s is null then 'start' else 'run' end)
    end as failure_phase,
    failed_json ->> '$.kind' as failure_kind,
    try_cast(failed_json ->> '$.is_memory' as boolean) as is_memory_failure,
    failure_message,
    try_cast(failed_json ->> '$.exit_code' as bigint) as exit_code,
    failed_requests,
    coalesce(reductions, 0) as reductions,
    replace(reduced_arguments, '"window_requests"', '"max_concurrency"') as reduced_arguments,
    restored_arguments,
    coalesce(isolated_requests, 0) as isolated_requests,
    opened_at_s,
    warmed_up_at_s,
    first_arrived_at_s,
    last_finished_at_s,
    work_began_at_s,
    last_ok_finished_at_s,
    work_ended_at_s,
    ended_at_s,
    load_s,
    warmup_s,
    work_ended_at_s - work_began_at_s as working_s,
    case
        when ending in ('failed', 'vanished')
            then work_ended_at_s - coalesce(last_ok_finished_at_s, work_began_at_s)
    end as lost_s,
    case
        when is_rebuild and coalesce(load_s, warmup_s) is not null then coalesce(load_s, 0) + coalesce(warmup_s, 0)
    end as rebuild_s,
    case
        when not is_rebuild then null
        when ending = 'failed' and work_began_at_s is null then failed_at_s
        else coalesce(warmed_up_at_s, opened_at_s)
    end - lag(ended_at_s) over engines as recovery_s,
    coalesce(ok_requests, 0) as ok_requests,
    coalesce(error_requests, 0) as error_requests,
    cast(ok_output_tokens as bigint) as ok_output_tokens,
    ok_output_tokens / nullif(work_ended_at_s - work_began_at_s, 0) as ok_output_tokens_per_s,
    -- If an engine's answers have no maximum, as in an open loop, the one it opened with was not applied.
    case
        when answered_requests = 0 or lives.last_max_concurrency is not null
            then coalesce(try_cast(opened_json ->> '$.window_requests' as bigint), first_max_concurrency)
    end as max_concurrency,
    case
        when answered_requests = 0 or lives.last_max_concurrency is not null then coalesce(
            try_cast(grown_window_requests as bigint),
            lives.last_max_concurrency,
            try_cast(opened_json ->> '$.window_requests' as bigint)
        )
    end as last_max_concurrency,
    try_cast(opened_json ->> '$.max_num_seqs' as bigint) as max_num_seqs,
    try_cast(opened_json ->> '$.max_num_batched_tokens' as bigint) as max_num_batched_tokens,
    try_cast(opened_json ->> '$.max_model_len' as bigint) as max_model_len,
    try_cast(opened_json ->> '$.gpu_memory_utilization' as double) as gpu_memory_utilization,
    try_cast(opened_json ->> '$.kv_cache_tokens' as bigint) as kv_cache_tokens,
    opened_json ->> '$.vllm_version' as vllm_version,
    opened_json ->> '$.device_name' as device_name,
    coalesce(telemetry_samples, 0) as telemetry_samples,
    engine_steps,
    output_tokens,
    output_tokens / nullif(engine_steps, 0) as output_tokens_per_step,
    case
        when answered_requests > 0 and lives.last_max_concurrency is not null then output_tokens / nullif(
            engine_steps * coalesce(try_cast(grown_window_requests as bigint), lives.last_max_concurrency), 0
        )
    end as concurrency_used_share,
    busy_samples,
    mean_kv_cache_usage_share,
    max_kv_cache_usage_share,
    mean_running_requests,
    max_running_requests,
    mean_waiting_requests,
    max_waiting_requests,
    preemptions
from lives
window engines as (partition by run_id, worker, attempt order by engine_generation);

comment on view main.engine is 'One row per run × worker × engine generation: its size, how and why it ended, what was reduced for the next one, and how full its batches and its KV cache were. An engine that left neither an event nor a sample nor an answer is not here.';
comment on column main.engine.run_id is 'The run.';
comment on column main.engine.worker is 'The worker that owned the engine.';
comment on column main.engine.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column main.engine.attempt is 'Which start of the run it belongs to, 1 for the first. NULL if the engine has no event and the run was started more than once.';
comment on column main.engine.is_rebuild is 'Whether the worker had an engine before it in the same attempt. NULL if attempt is.';
comment on column main.engine.earlier_reductions is 'Reductions that led to it: those after earlier engines of this worker in the same attempt, since the last time that reductions were undone.';
comment on column main.engine.ending is 'closed: as intended; failed: it crashed or did not start; running: the newest engine of a worker in the run''s current attempt, while the run''s state is running; vanished: its end has no event, so its worker was killed with it. NULL if it has no event.';
comment on column main.engine.failure_phase is 'start or run, for one that failed. Where the event does not report it: start if it never opened.';
comment on column main.engine.failure_kind is 'Kind of failure, from the event: device_oom, host_oom, killed, start_memory, other and the like.';
comment on column main.engine.is_memory_failure is 'Whether it failed for want of memory. NULL if it did not fail, or if the event does not record it.';
comment on column main.engine.failure_message is 'The failure in words.';
comment on column main.engine.exit_code is 'Exit code of its process, if it failed and the code is known; −9 is a kill.';
comment on column main.engine.failed_requests is 'Requests in flight when it failed, all to be sent again.';
comment on column main.engine.reductions is 'Times that something was reduced for the engine after it: 1 after a death that was answered so, otherwise 0.';
comment on column main.engine.reduced_arguments is 'Arguments reduced for the next engine, as a JSON object of {from, to} by argument. The last reduction if there are several.';
comment on column main.engine.restored_arguments is 'Reductions that were undone after it, because one request was to blame for them or others gave memory back; likewise.';
comment on column main.engine.isolated_requests is 'Requests that became error rows after it because they kill engines.';
comment on column main.engine.opened_at_s is 'When its start-up was over, in seconds since the run''s start, as all *_at_s. NULL for one that did not start.';
comment on column main.engine.warmed_up_at_s is 'When its warm-up was over. NULL without one. Seconds since the run''s start.';
comment on column main.engine.first_arrived_at_s is 'When the first request that it answered reached it, errors included. Seconds since the run''s start.';
comment on column main.engine.last_finished_at_s is 'When the last of its answers left it, errors included. Seconds since the run''s start.';
comment on column main.engine.work_began_at_s is 'When it began to work: the first arrival of a request that it gave a result for. For one that failed or vanished without a result: the first arrival of an error, else the end of warm-up, else the first sample with requests in flight, else (if it failed with requests in flight) the end of start-up. NULL if it has no recorded work. Seconds since the run''s start.';
comment on column main.engine.last_ok_finished_at_s is 'When its last result finished. Seconds since the run''s start.';
comment on column main.engine.work_ended_at_s is 'When its work ended: at the failure, for one that failed (with requests in flight, as far as is known); at the last sample with requests in flight or the last result, whichever is later, for one that vanished; otherwise at the last result. NULL if work_began_at_s is. Seconds since the run''s start.';
comment on column main.engine.ended_at_s is 'When it failed or was closed; if it vanished, its last event, sample or answer. NULL while it runs, or if it has no event. Seconds since the run''s start.';
comment on column main.engine.load_s is 'Start-up, seconds. NULL for one that did not start.';
comment on column main.engine.warmup_s is 'Warm-up, seconds.';
comment on column main.engine.working_s is 'Seconds at work: work_ended_at_s − work_began_at_s.';
comment on column main.engine.lost_s is 'Seconds of work thrown away by its failure or vanishing: work_ended_at_s − last_ok_finished_at_s (work_began_at_s if it had no result). Earlier work on requests still unfinished is lost, too, but not included. NULL for one that neither failed nor vanished.';
comment on column main.engine.rebuild_s is 'Start-up and warm-up of a rebuild, seconds: load_s + warmup_s. NULL if is_rebuild is not true, or it did not start.';
comment on column main.engine.recovery_s is 'Seconds that its worker was without an engine before it: from the end of the engine before it in the same attempt to the end of its warm-up (of its start-up, without one), or to its failure if it did no work. Contains rebuild_s and the wait for memory. NULL if is_rebuild is not true.';
comment on column main.engine.ok_requests is 'Results that it gave.';
comment on column main.engine.error_requests is 'Error rows that it gave, or that were written after it for requests that kill engines.';
comment on column main.engine.ok_output_tokens is 'Output tokens of its results.';
comment on column main.engine.ok_output_tokens_per_s is 'Output tokens per second at work: ok_output_tokens / working_s. NULL for no time.';
comment on column main.engine.max_num_seqs is 'Sequences that one step of it may hold, as it resolved. NULL if it did not open or does not report it, like all columns below.';
comment on column main.engine.max_num_batched_tokens is 'Tokens that one step of it may hold.';
comment on column main.engine.max_model_len is 'Tokens that a request may have, prompt and output.';
comment on column main.engine.gpu_memory_utilization is 'Share of the device''s memory that it was given, 0 to 1.';
comment on column main.engine.kv_cache_tokens is 'Tokens that its KV cache holds.';
comment on column main.engine.vllm_version is 'Version of vLLM.';
comment on column main.engine.device_name is 'The device.';
comment on column main.engine.telemetry_samples is 'Samples of its counters.';
comment on column main.engine.engine_steps is 'Engine steps up to the last sample, warm-up left out. NULL without a sample, and of a server, which does not report it.';
comment on column main.engine.output_tokens is 'Output tokens of requests finished up to the last sample. An engine that crashed has made more: what it had begun is not in it.';
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
