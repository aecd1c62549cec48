-- For intervals of rates: requests and tokens that finished in 20 equal windows of the time of sending.
-- Grain: one row per SLO, or NULL for all requests, × window.
with limits as (
    select
        slo,
        max(limit_s) filter (metric = 'ttft_s') as ttft_limit_s,
        max(limit_s) filter (metric = 'tpot_s') as tpot_limit_s,
        max(limit_s) filter (metric = 'e2e_s') as e2e_limit_s
    from raw.slos
    where run_id = getvariable('run_id')
    group by slo
    union all
    select null, null, null, null
),

sending as (
    select min(steady_from_s) as begins_at_s, max(ends_at_s) as ends_at_s
    from load_stretch
    join raw.loads using (run_id)
    where run_id = getvariable('run_id') and stretch_s > 0 and (has_windows or arrival <> 'concurrency')
)

select
    slo as detail,
    least(19, cast(floor(20 * (finished_at_s - begins_at_s) / (ends_at_s - begins_at_s)) as bigint)) as number,
    count(*) as requests,
    sum(output_tokens) as output_tokens,
    sum(prompt_tokens + output_tokens) as total_tokens
from request, sending, limits
where run_id = getvariable('run_id')
    and is_finished
    and finished_at_s between begins_at_s and ends_at_s
    and (ttft_limit_s is null or ttft_s <= ttft_limit_s)
    and (tpot_limit_s is null or streamed_tokens <= 1 or decode_s = 0 or tpot_s <= tpot_limit_s)
    and (e2e_limit_s is null or e2e_s <= e2e_limit_s)
group by slo, number;
