-- Grain: one row per run.
-- Between windows a request counts when it finishes, not when it is sent: what was sent inside is the rate that was
-- offered, which a server that drowns does not lower.
create or replace view throughput as
with

-- gap_s: seconds before this engine's work in which no engine worked, as every earlier work had ended.
find_gaps as (
    select
        run_id,
        work_began_at_s,
        work_ended_at_s,
        greatest(0, work_began_at_s - max(work_ended_at_s) over (
            partition by run_id
            order by work_began_at_s
            rows between unbounded preceding and 1 preceding
        )) as gap_s
    from engine_history
),

span_work as (
    select
        run_id,
        max(work_ended_at_s) - min(work_began_at_s) as duration_s,
        coalesce(sum(gap_s), 0) as gap_s
    from find_gaps
    group by run_id
),

add_stretches as (
    select run_id, sum(stretch_s) as stretch_s
    from load_stretch
    where has_windows
    group by run_id
),

count_finished as (
    select
        stg_requests.run_id,
        count(*) as requests,
        sum(prompt_tokens) as prompt_tokens,
        sum(output_tokens) as output_tokens
    from stg_requests
    left join load_stretch
        on load_stretch.run_id = stg_requests.run_id
        and load_stretch.worker = stg_requests.worker
        and load_stretch.engine_generation = stg_requests.engine_generation
        and load_stretch.has_windows
    where stg_requests.status = 'ok'
        and (load_stretch.run_id is null or stg_requests.finished_at_s between begins_at_s and ends_at_s)
    group by stg_requests.run_id
),

join_runs as (
    select
        runs.run_id,
        span_work.duration_s,
        case when span_work.duration_s is not null then span_work.gap_s end as downtime_s,
        span_work.duration_s - downtime_s as working_s,
        case when add_stretches.run_id is null then working_s else add_stretches.stretch_s end as measured_s,
        coalesce(count_finished.requests, 0) as finished_requests,
        cast(count_finished.prompt_tokens as bigint) as finished_prompt_tokens,
        cast(count_finished.output_tokens as bigint) as finished_output_tokens
    from runs
    left join span_work on span_work.run_id = runs.run_id
    left join add_stretches on add_stretches.run_id = runs.run_id
    left join count_finished on count_finished.run_id = runs.run_id
),

divide_counts as (
    select
        *,
        finished_requests / nullif(measured_s, 0) as requests_per_s,
        finished_output_tokens / nullif(measured_s, 0) as output_tokens_per_s,
        (finished_prompt_tokens + finished_output_tokens) / nullif(measured_s, 0) as total_tokens_per_s
    from join_runs
)

select * from divide_counts;

comment on view throughput is 'One row per run: what was finished, and the seconds that it took. Without a load, or with one that has no warm-up and cool-down windows, all ok requests over the seconds at work: load, warm-up, rebuilds and the pauses between attempts are outside. With windows, the ok requests that finished between them over the seconds between them, whenever they were sent.';
comment on column throughput.run_id is 'The run.';
comment on column throughput.duration_s is 'The whole window, seconds: from the first beginning to the last end of any engine''s work (engine_history.work_began_at_s and work_ended_at_s). NULL where no engine''s work has both ends.';
comment on column throughput.downtime_s is 'Seconds of it with no engine at work: every engine was being rebuilt, or the run was between two attempts. 0 where some engine always worked.';
comment on column throughput.working_s is 'Seconds of it with at least one engine at work: duration_s − downtime_s.';
comment on column throughput.measured_s is 'What throughput and goodput are divided by, seconds: working_s; with windows the sum of load_stretch.stretch_s over engines. NULL where they leave nothing.';
comment on column throughput.finished_requests is 'Ok requests that count: all; with windows those with finished_at_s from begins_at_s to ends_at_s of their engine''s load_stretch.';
comment on column throughput.finished_prompt_tokens is 'Their prompt tokens. NULL where none is known, as the next one.';
comment on column throughput.finished_output_tokens is 'Their output tokens, all of them: a request counts as a whole when it finishes.';
comment on column throughput.requests_per_s is 'Ok requests per second: finished_requests / measured_s.';
comment on column throughput.output_tokens_per_s is 'Output tokens per second: finished_output_tokens / measured_s.';
comment on column throughput.total_tokens_per_s is 'Prompt and output tokens per second: (finished_prompt_tokens + finished_output_tokens) / measured_s.';
