-- Inter-token latency (ITL): gaps between events with tokens of measured ok requests, pooled. Tokens that come at once
-- end one gap, as vllm bench serve counts. No intervals, as gaps share engine steps. Grain: one row per percentile.
with gaps as (
    select unnest(list_transform(token_at_s[2:], lambda at_s, place: at_s - token_at_s[place])) as gap_s
    from request
    join raw.completions using (run_id, request_id, worker, engine_generation)
    where completions.finished_at_s is not distinct from request.finished_at_s
        and run_id = getvariable('run_id')
        and status = 'ok'
        and phase = 'measured'
        and len(token_at_s) > 1
),

ranked as (
    select count(*) as n, quantile_cont(gap_s, [0.5, 0.9, 0.95, 0.99, 0.999]::double[]) as percentiles
    from gaps
    where gap_s > 0
)

select unnest(metric_rows([
    ('itl_s', 'p50', percentiles[1], n, 's', false),
    ('itl_s', 'p90', percentiles[2], n, 's', false),
    ('itl_s', 'p95', percentiles[3], n, 's', false),
    ('itl_s', 'p99', percentiles[4], n, 's', false),
    ('itl_s', 'p99.9', percentiles[5], n, 's', false)
]), recursive := true)
from ranked;
