-- Grain: one row per run × worker × engine generation.
-- An engine's work is derived from its results and its end. Only results count, as in every throughput, although a
-- crashed engine also worked on the requests that it lost.
create or replace view internal.engine_history as
with

read_events as (
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

read_counters as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) as telemetry_samples,
        max(engine_steps) as engine_steps,
        max(output_tokens) as output_tokens,
        max(at_s) as last_sample_at_s,
        min(at_s) filter (in_flight_requests > 0) as first_busy_at_s,
        max(at_s) filter (in_flight_requests > 0) as last_busy_at_s
    from raw.telemetry
    group by run_id, worker, engine_generation
),

count_answers as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) filter (status = 'ok') as ok_requests,
        count(*) filter (status = 'error') as error_requests,
        sum(output_tokens) filter (status = 'ok') as ok_output_tokens,
        min(window_requests) as first_window_requests,
        max(window_requests) as last_window_requests,
        min(arrived_at_s) as first_arrived_at_s,
        max(finished_at_s) as last_finished_at_s,
        min(arrived_at_s) filter (status = 'ok') as first_ok_arrived_at_s,
        max(finished_at_s) filter (status = 'ok') as last_ok_finished_at_s
    from stg_requests
    where status in ('ok', 'error') and worker <> 'prepare'
    group by run_id, worker, engine_generation
),

list_generations as (
    select run_id, worker, engine_generation from read_events
    union
    select run_id, worker, engine_generation from read_counters
    union
    select run_id, worker, engine_generation from count_answers
),

join_generations as (
    select
        list_generations.run_id,
        list_generations.worker,
        list_generations.engine_generation,
        -- A run that was started once has one attempt, even for an engine without events.
        coalesce(read_events.attempt, case when runs.attempt = 1 then 1 end) as attempt,
        runs.state = 'running' and runs.attempt = coalesce(read_events.attempt, 1)
            and list_generations.engine_generation = max(list_generations.engine_generation) over (
                partition by list_generations.run_id, list_generations.worker
            ) as may_be_running,
        read_events.* exclude (run_id, worker, engine_generation, attempt),
        read_counters.* exclude (run_id, worker, engine_generation),
        count_answers.* exclude (run_id, worker, engine_generation)
    from list_generations
    left join raw.runs on runs.run_id = list_generations.run_id
    left join read_events
        on read_events.run_id = list_generations.run_id
        and read_events.worker = list_generations.worker
        and read_events.engine_generation = list_generations.engine_generation
    left join read_counters
        on read_counters.run_id = list_generations.run_id
        and read_counters.worker = list_generations.worker
        and read_counters.engine_generation = list_generations.engine_generation
    left join count_answers
        on count_answers.run_id = list_generations.run_id
        and count_answers.worker = list_generations.worker
        and count_answers.engine_generation = list_generations.engine_generation
),

tell_endings as (
    select
        *,
        -- An engine that failed is closed too, so failing comes first.
        case
            when failed_at_s is not null then 'failed'
            when closed_at_s is not null then 'closed'
            when last_event_at_s is null then null
            when may_be_running then 'running'
            else 'vanished'
        end as ending,
        case
            when failed_at_s is not null
                then coalesce(failed_json ->> '$.phase', case when opened_at_s is null then 'start' else 'run' end)
        end as failure_phase,
        try_cast(failed_json ->> '$.in_flight_requests' as bigint) as failed_requests
    from join_generations
),

find_work as (
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
    from tell_endings
),

order_engines as (
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
        lag(ended_at_s) over engines as earlier_ended_at_s,
        count(restored_arguments) over (engines rows between unbounded preceding and 1 preceding) as restorations
    from find_work
    window engines as (partition by run_id, worker, attempt order by engine_generation)
),

add_reductions as (
    select
        *,
        sum(reductions) over (
            partition by run_id, worker, attempt, restorations
            order by engine_generation
            rows between unbounded preceding and 1 preceding
        ) as earlier_reductions
    from order_engines
),

measure_engines as (
    select
        run_id,
        worker,
        engine_generation,
        attempt,
        is_rebuild,
        cast(coalesce(earlier_reductions, 0) as bigint) as earlier_reductions,
        ending,
        failure_phase,
        failed_json ->> '$.kind' as failure_kind,
        try_cast(failed_json ->> '$.is_memory' as boolean) as is_memory_failure,
        failure_message,
        try_cast(failed_json ->> '$.exit_code' as bigint) as exit_code,
        failed_requests,
        coalesce(reductions, 0) as reductions,
        reduced_arguments,
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
        end - earlier_ended_at_s as recovery_s,
        coalesce(ok_requests, 0) as ok_requests,
        coalesce(error_requests, 0) as error_requests,
        cast(ok_output_tokens as bigint) as ok_output_tokens,
        ok_output_tokens / nullif(work_ended_at_s - work_began_at_s, 0) as ok_output_tokens_per_s,
        -- If an engine's answers have no window, as in an open loop, the window it opened with was not applied.
        case
            when coalesce(ok_requests, 0) + coalesce(error_requests, 0) = 0 or last_window_requests is not null
            then coalesce(try_cast(opened_json ->> '$.window_requests' as bigint), first_window_requests)
        end as window_requests,
        case
            when coalesce(ok_requests, 0) + coalesce(error_requests, 0) = 0 or last_window_requests is not null
            then coalesce(
                try_cast(grown_window_requests as bigint),
                last_window_requests,
                try_cast(opened_json ->> '$.window_requests' as bigint)
            )
        end as last_window_requests,
        try_cast(opened_json ->> '$.max_num_seqs' as bigint) as max_num_seqs,
        try_cast(opened_json ->> '$.max_num_batched_tokens' as bigint) as max_num_batched_tokens,
        try_cast(opened_json ->> '$.max_model_len' as bigint) as max_model_len,
        try_cast(opened_json ->> '$.gpu_memory_utilization' as double) as gpu_memory_utilization,
        try_cast(opened_json ->> '$.kv_cache_tokens' as bigint) as kv_cache_tokens,
        opened_json ->> '$.vllm_version' as vllm_version,
        opened_json ->> '$.device_name' as device_name,
        coalesce(telemetry_samples, 0) as telemetry_samples,
        engine_steps,
        output_tokens
    from add_reductions
)

select * from measure_engines;

comment on view internal.engine_history is 'One row per run × worker × engine generation: what became of every engine, and why. An engine that left neither an event nor a sample nor an answer is not here.';
comment on column internal.engine_history.run_id is 'The run.';
comment on column internal.engine_history.worker is 'The worker that owned the engine.';
comment on column internal.engine_history.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column internal.engine_history.attempt is 'Which start of the run it belongs to, 1 for the first. NULL if the engine has no event and the run was started more than once.';
comment on column internal.engine_history.is_rebuild is 'Whether the worker had an engine before it in the same attempt. NULL if attempt is.';
comment on column internal.engine_history.earlier_reductions is 'Reductions that led to it: those after earlier engines of this worker in the same attempt, since the last time that reductions were undone.';
comment on column internal.engine_history.ending is 'closed: as intended; failed: it crashed or did not start; running: the newest engine of a worker in the run''s current attempt, while the run''s state is running; vanished: its end has no event, so its worker was killed with it. NULL if it has no event.';
comment on column internal.engine_history.failure_phase is 'start or run, for one that failed. Where the event does not report it: start if it never opened.';
comment on column internal.engine_history.failure_kind is 'Kind of failure, from the event: device_oom, host_oom, killed, start_memory, other and the like.';
comment on column internal.engine_history.is_memory_failure is 'Whether it failed for want of memory. NULL if it did not fail, or if the event does not record it.';
comment on column internal.engine_history.failure_message is 'The failure in words.';
comment on column internal.engine_history.exit_code is 'Exit code of its process, if it failed and the code is known; −9 is a kill.';
comment on column internal.engine_history.failed_requests is 'Requests in flight when it failed, all to be sent again.';
comment on column internal.engine_history.reductions is 'Times that something was reduced for the engine after it: 1 after a death that was answered so, otherwise 0.';
comment on column internal.engine_history.reduced_arguments is 'Arguments reduced for the next engine, as a JSON object of {from, to} by argument. The last reduction if there are several.';
comment on column internal.engine_history.restored_arguments is 'Reductions that were undone after it, because one request was to blame for them or others gave memory back; likewise.';
comment on column internal.engine_history.isolated_requests is 'Requests that became error rows after it because they kill engines.';
comment on column internal.engine_history.opened_at_s is 'When its start-up was over, in seconds since the run''s start, as all *_at_s. NULL for one that did not start.';
comment on column internal.engine_history.warmed_up_at_s is 'When its warm-up was over. NULL without one. Seconds since the run''s start.';
comment on column internal.engine_history.first_arrived_at_s is 'When the first request that it answered reached it, errors included. Seconds since the run''s start.';
comment on column internal.engine_history.last_finished_at_s is 'When the last of its answers left it, errors included. Seconds since the run''s start.';
comment on column internal.engine_history.work_began_at_s is 'When it began to work: the first arrival of a request that it gave a result for. For one that failed or vanished without a result: the first arrival of an error, else the end of warm-up, else the first sample with requests in flight, else (if it failed with requests in flight) the end of start-up. NULL if it has no recorded work. Seconds since the run''s start.';
comment on column internal.engine_history.last_ok_finished_at_s is 'When its last result finished. Seconds since the run''s start.';
comment on column internal.engine_history.work_ended_at_s is 'When its work ended: at the failure, for one that failed (with requests in flight, as far as is known); at the last sample with requests in flight or the last result, whichever is later, for one that vanished; otherwise at the last result. NULL if work_began_at_s is. Seconds since the run''s start.';
comment on column internal.engine_history.ended_at_s is 'When it failed or was closed; if it vanished, its last event, sample or answer. NULL while it runs, or if it has no event. Seconds since the run''s start.';
comment on column internal.engine_history.load_s is 'Start-up, seconds. NULL for one that did not start.';
comment on column internal.engine_history.warmup_s is 'Warm-up, seconds.';
comment on column internal.engine_history.working_s is 'Seconds at work: work_ended_at_s − work_began_at_s.';
comment on column internal.engine_history.lost_s is 'Seconds of work thrown away by its failure or vanishing: work_ended_at_s − last_ok_finished_at_s (work_began_at_s if it had no result). Earlier work on requests still unfinished is lost, too, but not included. NULL for one that neither failed nor vanished.';
comment on column internal.engine_history.rebuild_s is 'Start-up and warm-up of a rebuild, seconds: load_s + warmup_s. NULL if is_rebuild is not true, or it did not start.';
comment on column internal.engine_history.recovery_s is 'Seconds that its worker was without an engine before it: from the end of the engine before it in the same attempt to the end of its warm-up (of its start-up, without one), or to its failure if it did no work. Contains rebuild_s and the wait for memory. NULL if is_rebuild is not true.';
comment on column internal.engine_history.ok_requests is 'Results that it gave.';
comment on column internal.engine_history.error_requests is 'Error rows that it gave, or that were written after it for requests that kill engines.';
comment on column internal.engine_history.ok_output_tokens is 'Output tokens of its results.';
comment on column internal.engine_history.ok_output_tokens_per_s is 'Output tokens per second at work: ok_output_tokens / working_s. NULL for no time.';
comment on column internal.engine_history.window_requests is 'Maximum requests in flight when it opened; without an event, the smallest window recorded with its answers. NULL in an open loop, which has no window.';
comment on column internal.engine_history.last_window_requests is 'Maximum requests in flight at the end: from the last growth, else the widest window recorded with its answers, else window_requests. NULL in an open loop.';
comment on column internal.engine_history.max_num_seqs is 'Sequences that one step of it may hold, as it resolved. NULL if it did not open or does not report it, like all columns below.';
comment on column internal.engine_history.max_num_batched_tokens is 'Tokens that one step of it may hold.';
comment on column internal.engine_history.max_model_len is 'Tokens that a request may have, prompt and output.';
comment on column internal.engine_history.gpu_memory_utilization is 'Share of the device''s memory that it was given, 0 to 1.';
comment on column internal.engine_history.kv_cache_tokens is 'Tokens that its KV cache holds.';
comment on column internal.engine_history.vllm_version is 'Version of vLLM.';
comment on column internal.engine_history.device_name is 'The device.';
comment on column internal.engine_history.telemetry_samples is 'Samples of its counters.';
comment on column internal.engine_history.engine_steps is 'Engine steps up to the last sample, warm-up left out. NULL without a sample, and of a server, which does not report it.';
comment on column internal.engine_history.output_tokens is 'Output tokens of requests finished up to the last sample. An engine that crashed has made more: what it had begun is not in it.';
