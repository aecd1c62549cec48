-- Grain: one row per turn of a run whose conversations were sent turn by turn.
--
-- A later turn's prompt begins with all of the turn before and its answer, so with a prefix cache most of it is there
-- already: prompts grow from turn to turn, and the time to the first token need not. Conversations have different
-- numbers of turns, so a later turn has fewer requests, and they are those of the longer conversations.
with

count_turns as (
    select
        run_id,
        turn_index,
        count(*) as requests,
        count(*) filter (status = 'ok') as ok_requests,
        count(*) filter (status = 'error') as error_requests,
        avg(prompt_tokens) filter (status = 'ok') as mean_prompt_tokens,
        avg(output_tokens) filter (status = 'ok') as mean_output_tokens,
        sum(cached_tokens) filter (status = 'ok') as cached_tokens,
        sum(prompt_tokens) filter (status = 'ok' and cached_tokens is not null) as cacheable_tokens,
        quantile_cont(ttft_s, [0.5, 0.95]::double[]) filter (status = 'ok' and phase = 'measured') as ttft_quantiles_s,
        quantile_cont(tpot_s, 0.5) filter (status = 'ok' and phase = 'measured') as tpot_p50_s,
        quantile_cont(e2e_s, [0.5, 0.95]::double[]) filter (status = 'ok' and phase = 'measured') as e2e_quantiles_s
    from request
    where turn_index is not null
    group by run_id, turn_index
),

read_quantiles as (
    select
        run_id,
        turn_index,
        requests,
        ok_requests,
        error_requests,
        mean_prompt_tokens,
        mean_output_tokens,
        cached_tokens / nullif(cacheable_tokens, 0) as cached_share,
        ttft_quantiles_s[1] as ttft_p50_s,
        ttft_quantiles_s[2] as ttft_p95_s,
        tpot_p50_s,
        e2e_quantiles_s[1] as e2e_p50_s,
        e2e_quantiles_s[2] as e2e_p95_s
    from count_turns
)

select * from read_quantiles
where run_id = getvariable('run_id')
order by turn_index;
