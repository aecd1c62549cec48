-- Requests within a service level objective (SLO): results within every limit that it sets. Without the stamp that a
-- limit needs a request is not; an answer of at most one token, or whose tokens all came at one moment, passes any
-- tpot_s. Grain: one row per SLO × metric.
with limits as (
    select
        slo,
        max(limit_s) filter (metric = 'ttft_s') as ttft_limit_s,
        max(limit_s) filter (metric = 'tpot_s') as tpot_limit_s,
        max(limit_s) filter (metric = 'e2e_s') as e2e_limit_s
    from raw.slos
    where run_id = getvariable('run_id')
    group by slo
),

judged as (
    select
        slo,
        phase,
        is_finished,
        output_tokens,
        status = 'ok'
            and (ttft_limit_s is null or coalesce(ttft_s <= ttft_limit_s, false))
            and (
                tpot_limit_s is null
                or coalesce(streamed_tokens <= 1 or decode_s = 0 or tpot_s <= tpot_limit_s, false)
            )
            and (e2e_limit_s is null or coalesce(e2e_s <= e2e_limit_s, false)) as is_good
    from limits
    left join (
        from request where run_id = getvariable('run_id') and status in ('ok', 'error')
    ) on true
),

counts as (
    select
        slo,
        count(*) filter (phase = 'measured') as n,
        count(*) filter (phase = 'measured' and is_good) as good,
        count(*) filter (is_good) as all_good,
        count(is_good) as judged,
        count(*) filter (is_finished and is_good) as finished,
        case when finished = 0 then 0 else sum(output_tokens) filter (is_finished and is_good) end as tokens
    from judged
    group by slo
),

speeds as (
    select
        max(value) filter (metric = 'measured_s') as measured_s,
        max(value) filter (metric = 'attempted_s') as attempted_s,
        max(value) filter (metric = 'requests_per_s') as requests_per_s
    from metric_value
    where run_id = getvariable('run_id')
)

select slo as detail, unnest(metric_rows([
    ('good_requests', 'total', good, n, 'requests', true),
    ('good_share', 'mean', good / nullif(n, 0), n, 'share', true),
    ('good_requests_per_s', 'mean', case when requests_per_s is not null and judged > 0
        then finished / nullif(measured_s, 0) end, n, 'requests/s', true),
    ('good_output_tokens_per_s', 'mean', case when requests_per_s is not null and judged > 0
        then tokens / nullif(measured_s, 0) end, n, 'tokens/s', true),
    ('good_requests_per_attempted_s', 'mean', case when judged > 0 then all_good / nullif(attempted_s, 0) end, n,
        'requests/s', true)
]), recursive := true)
from counts, speeds;
