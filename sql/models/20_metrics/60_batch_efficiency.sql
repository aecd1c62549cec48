-- Grain: one row per run × worker × engine generation.
create or replace view batch_efficiency as
with

read_counters as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) as telemetry_samples,
        max(engine_steps) as engine_steps,
        max(output_tokens) as output_tokens
    from telemetry
    group by run_id, worker, engine_generation
),

count_answers as (
    select
        run_id,
        worker,
        engine_generation,
        count(*) filter (status = 'ok') as ok_requests,
        count(*) filter (status = 'error') as error_requests,
        max(window_requests) as window_requests
    from stg_requests
    where status <> 'missing' and worker <> 'prepare'
    group by run_id, worker, engine_generation
),

list_generations as (
    select run_id, worker, engine_generation from read_counters
    union
    select run_id, worker, engine_generation from count_answers
    union
    select run_id, worker, engine_generation from engine_events
),

join_generations as (
    select
        list_generations.run_id,
        list_generations.worker,
        list_generations.engine_generation,
        max(list_generations.engine_generation) over (
            partition by list_generations.run_id, list_generations.worker
        ) - list_generations.engine_generation as later_generations,
        coalesce(count_answers.ok_requests, 0) as ok_requests,
        coalesce(count_answers.error_requests, 0) as error_requests,
        count_answers.window_requests,
        coalesce(read_counters.telemetry_samples, 0) as telemetry_samples,
        read_counters.engine_steps,
        read_counters.output_tokens
    from list_generations
    left join read_counters
        on read_counters.run_id = list_generations.run_id
        and read_counters.worker = list_generations.worker
        and read_counters.engine_generation = list_generations.engine_generation
    left join count_answers
        on count_answers.run_id = list_generations.run_id
        and count_answers.worker = list_generations.worker
        and count_answers.engine_generation = list_generations.engine_generation
),

measure_batches as (
    select
        *,
        output_tokens / nullif(engine_steps, 0) as output_tokens_per_step,
        output_tokens / nullif(engine_steps * window_requests, 0) as window_share
    from join_generations
)

select * from measure_batches;

comment on view batch_efficiency is 'One row per run × worker × engine generation: how full the engine''s batches were, counted in engine steps, which do not depend on the machine''s noise.';
comment on column batch_efficiency.run_id is 'The run.';
comment on column batch_efficiency.worker is 'The worker that owned the engine.';
comment on column batch_efficiency.engine_generation is 'Engines that this worker had opened before this one.';
comment on column batch_efficiency.later_generations is 'Engines that this worker had to open after this one: the worker''s last engine_generation − this one.';
comment on column batch_efficiency.ok_requests is 'Results that it gave.';
comment on column batch_efficiency.error_requests is 'Error rows that it gave.';
comment on column batch_efficiency.window_requests is 'The most requests allowed in flight, as its answers say. NULL where it answered nothing.';
comment on column batch_efficiency.telemetry_samples is 'Samples of its counters.';
comment on column batch_efficiency.engine_steps is 'Engine steps up to the last sample, warm-up left out. NULL without a sample.';
comment on column batch_efficiency.output_tokens is 'Output tokens of requests finished up to the last sample. An engine that died has made more: what it had begun is not in it.';
comment on column batch_efficiency.output_tokens_per_step is 'Mean output tokens per engine step: output_tokens / engine_steps. NULL without steps.';
comment on column batch_efficiency.window_share is 'How much of the window an average step used: output_tokens_per_step / window_requests. A window wider than max_num_seqs keeps it below 1; speculative decoding may lift it above.';
