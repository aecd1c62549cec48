-- Grain: one row per run × worker × engine generation.
create or replace view internal.batch_efficiency as
with

select_engines as (
    select
        run_id,
        worker,
        engine_generation,
        attempt,
        max(engine_generation) over (partition by run_id, worker, attempt) - engine_generation as later_generations,
        earlier_reductions,
        ok_requests,
        error_requests,
        window_requests as opened_window_requests,
        case when ok_requests + error_requests > 0 then last_window_requests end as window_requests,
        telemetry_samples,
        engine_steps,
        output_tokens
    from engine_history
),

measure_batches as (
    select
        *,
        output_tokens / nullif(engine_steps, 0) as output_tokens_per_step,
        output_tokens / nullif(engine_steps * window_requests, 0) as window_share
    from select_engines
)

select * from measure_batches;

comment on view internal.batch_efficiency is 'One row per run × worker × engine generation: how full the engine''s batches were, counted in engine steps, which do not depend on the machine''s noise. See engine_history for how the engine ended.';
comment on column internal.batch_efficiency.run_id is 'The run.';
comment on column internal.batch_efficiency.worker is 'The worker that owned the engine.';
comment on column internal.batch_efficiency.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column internal.batch_efficiency.attempt is 'Which start of the run it belongs to; see engine_history.attempt.';
comment on column internal.batch_efficiency.later_generations is 'Engines that this worker had to start after this one in the same attempt: the worker''s last engine_generation of the attempt − this one. Engines of later attempts are not among them.';
comment on column internal.batch_efficiency.earlier_reductions is 'Reductions that led to it; see engine_history.earlier_reductions.';
comment on column internal.batch_efficiency.ok_requests is 'Results that it gave.';
comment on column internal.batch_efficiency.error_requests is 'Error rows that it gave, or that were written after it for requests that kill engines.';
comment on column internal.batch_efficiency.opened_window_requests is 'Maximum requests in flight when it opened; see engine_history.window_requests.';
comment on column internal.batch_efficiency.window_requests is 'Maximum requests in flight, the widest if the window grew: engine_history.last_window_requests. NULL if it answered nothing, and in an open loop.';
comment on column internal.batch_efficiency.telemetry_samples is 'Samples of its counters.';
comment on column internal.batch_efficiency.engine_steps is 'Engine steps up to the last sample, warm-up left out. NULL without a sample, and of a server, which does not report it.';
comment on column internal.batch_efficiency.output_tokens is 'Output tokens of requests finished up to the last sample. An engine that crashed has made more: what it had begun is not in it.';
comment on column internal.batch_efficiency.output_tokens_per_step is 'Mean output tokens per engine step: output_tokens / engine_steps. NULL without steps. An engine that crashed has steps whose tokens were lost, and so a lower mean.';
comment on column internal.batch_efficiency.window_share is 'How much of the window an average step used: output_tokens_per_step / window_requests. A window wider than max_num_seqs keeps it below 1, as does one that grew late; speculative decoding may lift it above. NULL in an open loop.';
