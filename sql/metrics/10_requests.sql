-- How many requests were answered, failed or cut off, and their tokens. An imported run has no engines of its own, so
-- what only they report is NULL. Grain: one row per metric.
with counts as (
    select
        count(*) as prepared,
        count(*) filter (status = 'ok') as ok,
        count(*) filter (status = 'error') as errors,
        count(*) filter (status = 'unsent') as unsent,
        count(*) filter (phase = 'measured') as measured,
        count(*) filter (retries > 0) as retried,
        count(*) filter (context_limited) as context_limited,
        count(*) filter (truncated) as truncated,
        count(truncated) as cuttable,
        count(distinct prompt_id) as prompts,
        count(distinct (prompt_id, occurrence)) filter (status = 'error' and worker = 'prepare') as unasked,
        count(distinct worker) filter (status in ('ok', 'error') and worker <> 'prepare') as workers,
        sum(prompt_tokens) filter (status = 'ok') as prompt_tokens,
        sum(output_tokens) filter (status = 'ok') as output_tokens,
        sum(cached_tokens) filter (status = 'ok') as cached_tokens,
        sum(prompt_tokens) filter (status = 'ok' and cached_tokens is not null) as cacheable_tokens,
        sum(preemptions) filter (status = 'ok') as preemptions,
        sum(list_sum(acceptance_histogram)) filter (status = 'ok') as drafts,
        sum(list_sum(list_transform(acceptance_histogram, lambda drafts, place: drafts * (place - 1))))
            filter (status = 'ok') as accepted_tokens,
        sum(draft_tokens) filter (status = 'ok' and acceptance_histogram is not null) as draft_tokens
    from request
    where run_id = getvariable('run_id')
),

runs as (
    select *, coalesce(expected_requests, prepared) as expected, case when state <> 'imported' and purpose is distinct from 'import' then 0 end as ours
    from counts
    cross join (select expected_requests, state, purpose, attempt from raw.runs where run_id = getvariable('run_id'))
)

select unnest(metric_rows([
    ('expected_requests', 'total', expected, null, 'requests', null),
    ('answered_requests', 'total', ok + errors, expected, 'requests', true),
    ('ok_requests', 'total', ok, expected, 'requests', true),
    ('error_requests', 'total', errors, expected, 'requests', false),
    ('missing_requests', 'total', greatest(0, expected - ok - errors - unsent), expected, 'requests', false),
    ('unsent_requests', 'total', unsent, expected, 'requests', null),
    ('measured_requests', 'total', measured, ok + errors, 'requests', null),
    ('retried_requests', 'total', retried + ours, ok + errors, 'requests', false),
    ('context_limited_requests', 'total', context_limited + coalesce(ours, case when cuttable > 0 then 0 end), ok,
        'requests', false),
    ('truncated_requests', 'total', truncated + coalesce(ours, case when cuttable > 0 then 0 end), ok, 'requests',
        false),
    ('truncated_share', 'mean', truncated / nullif(cuttable, 0), ok, 'share', false),
    ('unasked_rows', 'total', unasked, null, 'rows', false),
    ('error_share', 'mean', errors / nullif(ok + errors, 0), ok + errors, 'share', false),
    ('prompts', 'total', prompts, expected, 'prompts', null),
    ('prompt_tokens', 'total', prompt_tokens, ok, 'tokens', null),
    ('cached_tokens', 'total', cached_tokens, ok, 'tokens', null),
    ('output_tokens', 'total', output_tokens, ok, 'tokens', null),
    ('prefix_cache_hit_rate', 'mean', cached_tokens / nullif(cacheable_tokens, 0), prompt_tokens, 'share', true),
    ('preemptions', 'total', preemptions, ok, 'preemptions', false),
    ('workers', 'total', workers + ours, null, 'workers', null),
    ('attempts', 'total', attempt, null, 'attempts', false),
    ('acceptance_length', 'mean', 1 + accepted_tokens / nullif(drafts, 0), drafts, 'tokens/step', true),
    ('draft_acceptance', 'mean', accepted_tokens / nullif(draft_tokens, 0), draft_tokens, 'share', true)
]), recursive := true)
from runs;
