-- Seconds in which engines worked, starts, failures and rebuilds, and throughput: requests that finished between a
-- load's windows per second of them, or per second with an engine at work. Grain: one row per metric.
with seconds as (
    select
        max(until_s) filter (kind = 'work') - min(from_s) filter (kind = 'work') as duration_s,
        sum(until_s - from_s) filter (kind = 'work') as working_s,
        sum(until_s - from_s) filter (kind = 'attempt') as attempted_s,
        case
            when count(*) filter (kind = 'window') > 0 then sum(until_s - from_s) filter (kind = 'window')
            else sum(until_s - from_s) filter (kind = 'work')
        end as measured_s
    from stretch
    where run_id = getvariable('run_id')
),

-- If an engine's steps or its maximum in flight are not known, its tokens do not count towards occupancy.
engines as (
    select
        attempt,
        max(load_s) filter (not is_rebuild) as load_s,
        max(warmup_s) filter (not is_rebuild) as warmup_s,
        max(load_s + coalesce(warmup_s, 0)) filter (not is_rebuild) as start_s,
        count(*) filter (is_rebuild) as rebuilds,
        sum(rebuild_s) as rebuild_s,
        sum(recovery_s) as recovery_s,
        sum(reductions) as reductions,
        sum(isolated_requests) as isolated,
        count(*) filter (ending = 'failed') as failures,
        count(*) filter (ending = 'vanished') as vanished,
        sum(lost_s) as lost_s,
        sum(engine_steps) as steps,
        sum(output_tokens) filter (engine_steps is not null) as step_tokens,
        sum(output_tokens) filter (concurrency_used_share is not null) as used_tokens,
        sum(engine_steps * last_max_concurrency) filter (concurrency_used_share is not null) as used_steps,
        row_number() over (order by coalesce(max(load_s) filter (not is_rebuild),
            max(warmup_s) filter (not is_rebuild)) is null, attempt) as start_order
    from engine
    where run_id = getvariable('run_id')
    group by attempt
),

starts as (
    select
        max(load_s) filter (start_order = 1) as load_s,
        max(warmup_s) filter (start_order = 1) as warmup_s,
        sum(start_s) filter (start_order > 1) as resume_load_s,
        coalesce(sum(rebuilds), 0) as rebuilds,
        sum(rebuild_s) as rebuild_s,
        sum(recovery_s) as recovery_s,
        coalesce(sum(reductions), 0) as reductions,
        coalesce(sum(isolated), 0) as isolated,
        coalesce(sum(failures), 0) as failures,
        coalesce(sum(vanished), 0) as vanished,
        sum(lost_s) as lost_s,
        sum(steps) as steps,
        sum(step_tokens) / nullif(sum(steps), 0) as tokens_per_step,
        sum(used_tokens) / nullif(sum(used_steps), 0) as used_share
    from engines
),

finished as (
    select
        count(*) filter (status = 'ok') as ok,
        count(*) filter (status = 'ok' and phase = 'measured') as measured_ok,
        count(*) filter (is_finished) as requests,
        sum(prompt_tokens) filter (is_finished) as prompt_tokens,
        sum(output_tokens) filter (is_finished) as output_tokens,
        sum(output_tokens) filter (status = 'ok') as ok_output_tokens,
        sum(prompt_tokens + output_tokens) filter (status = 'ok') as ok_tokens
    from request
    where run_id = getvariable('run_id')
),

-- If all measured results finished after the interval, answers that take longer than the sending have no throughput.
runs as (
    select
        *,
        case when requests > 0 or measured_ok = 0 then requests / nullif(measured_s, 0) end as requests_per_s,
        (select case when state <> 'imported' and purpose is distinct from 'import' then 0 end from raw.runs where run_id = getvariable('run_id')) as ours
    from seconds, starts, finished
)

select unnest(metric_rows([
    ('requests_per_s', 'mean', requests_per_s, round(requests_per_s * measured_s), 'requests/s', true),
    ('output_tokens_per_s', 'mean', output_tokens / nullif(measured_s, 0), round(requests_per_s * measured_s),
        'tokens/s', true),
    ('total_tokens_per_s', 'mean', (prompt_tokens + output_tokens) / nullif(measured_s, 0),
        round(requests_per_s * measured_s), 'tokens/s', true),
    ('ok_requests_per_attempted_s', 'mean', ok / nullif(attempted_s, 0), ok, 'requests/s', true),
    ('output_tokens_per_attempted_s', 'mean', ok_output_tokens / nullif(attempted_s, 0), ok, 'tokens/s', true),
    ('total_tokens_per_attempted_s', 'mean', ok_tokens / nullif(attempted_s, 0), ok, 'tokens/s', true),
    ('duration_s', 'total', duration_s, null, 's', false),
    ('working_s', 'total', working_s, null, 's', null),
    ('measured_s', 'total', measured_s, null, 's', null),
    ('attempted_s', 'total', attempted_s, null, 's', null),
    ('downtime_s', 'total', duration_s - working_s + ours, null, 's', false),
    ('load_s', 'total', load_s, null, 's', false),
    ('warmup_s', 'total', warmup_s, null, 's', false),
    ('resume_load_s', 'total', resume_load_s, null, 's', false),
    ('lost_s', 'total', lost_s, null, 's', false),
    ('rebuild_s', 'total', rebuild_s, rebuilds, 's', false),
    ('recovery_s', 'total', recovery_s, rebuilds + ours, 's', false),
    ('engine_failures', 'total', failures + ours, null, 'engines', false),
    ('vanished_engines', 'total', vanished + ours, null, 'engines', false),
    ('rebuilds', 'total', rebuilds + ours, null, 'engines', false),
    ('reductions', 'total', reductions + ours, null, 'times', false),
    ('isolated_requests', 'total', isolated + ours, null, 'requests', false),
    ('engine_steps', 'total', steps, null, 'steps', null),
    ('output_tokens_per_step', 'mean', tokens_per_step, steps, 'tokens', true),
    ('concurrency_used_share', 'mean', used_share, steps, 'share', true)
]), recursive := true)
from runs;
