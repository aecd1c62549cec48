-- Grain: one row per run: what was prepared, as far as its speed depends on it.
create or replace view internal.prepared_run as
with

-- In no order: the sum, bit by bit, of a digest per prompt row.
digest_prompts as (
    select
        run_id,
        to_hex(bit_xor(md5_number_lower(prompt_id || '/' || cast(occurrence as varchar)))) as prompts_digest
    from raw.prompts
    group by run_id
),

find_orders as (
    select run_id, count(expected_output_tokens) > 0 as is_longest_first
    from raw.requests
    group by run_id
),

join_runs as (
    select runs.run_id, digest_prompts.prompts_digest, find_orders.is_longest_first
    from raw.runs
    left join digest_prompts on digest_prompts.run_id = runs.run_id
    left join find_orders on find_orders.run_id = runs.run_id
)

select * from join_runs;

comment on view internal.prepared_run is 'One row per run: a digest of its prompt rows, and in which order its requests were begun. For a run that has ended, measured_runs has the same.';
comment on column internal.prepared_run.run_id is 'The run.';
comment on column internal.prepared_run.prompts_digest is 'Digest of the prompt rows, in no order. NULL for a run without prompts.';
comment on column internal.prepared_run.is_longest_first is 'Whether requests were ordered by expected lengths from earlier runs. NULL for a run without requests.';
