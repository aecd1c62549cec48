-- Grain: one row per run × worker × engine generation.
-- columns of: internal.engine_history, internal.batch_efficiency, internal.scheduler_use
create or replace view main.engine as
with

join_use as (
    select
        engine_history.* rename (window_requests as max_concurrency, last_window_requests as last_max_concurrency),
        batch_efficiency.output_tokens_per_step,
        batch_efficiency.window_share as concurrency_used_share,
        scheduler_use.* exclude (run_id, worker, engine_generation)
    from internal.engine_history
    left join internal.batch_efficiency
        on batch_efficiency.run_id = engine_history.run_id
        and batch_efficiency.worker = engine_history.worker
        and batch_efficiency.engine_generation = engine_history.engine_generation
    left join internal.scheduler_use
        on scheduler_use.run_id = engine_history.run_id
        and scheduler_use.worker = engine_history.worker
        and scheduler_use.engine_generation = engine_history.engine_generation
)

select * from join_use;

comment on view main.engine is 'One row per run × worker × engine generation: its size, how and why it ended, what was reduced for the next one, and how full its batches and its KV cache were. An engine that left neither an event nor a sample nor an answer is not here.';
comment on column main.engine.max_concurrency is 'Maximum requests in flight when it opened. NULL in an open loop.';
comment on column main.engine.last_max_concurrency is 'Maximum requests in flight at its end. NULL likewise.';
comment on column main.engine.concurrency_used_share is 'How much of last_max_concurrency an average engine step used: output_tokens_per_step / last_max_concurrency. NULL in an open loop.';
