-- Grain: one row per turn of a run whose conversations were sent turn by turn.
--
-- A later turn's prompt begins with all of the turn before and its answer, so with a prefix cache most of it is there
-- already: prompts grow from turn to turn, and the time to the first token need not. Conversations have different
-- numbers of turns, so a later turn has fewer requests, and they are those of the longer conversations.
select
    turn_index,
    count(*) as requests,
    count(*) filter (status = 'ok') as ok_requests,
    count(*) filter (status = 'error') as error_requests,
    avg(prompt_tokens) filter (status = 'ok') as mean_prompt_tokens,
    avg(output_tokens) filter (status = 'ok') as mean_output_tokens,
    sum(cached_tokens) filter (status = 'ok')
        / nullif(sum(prompt_tokens) filter (status = 'ok' and cached_tokens is not null), 0) as cached_share,
    quantile_cont(ttft_s, 0.5) filter (status = 'ok' and phase = 'measured') as ttft_p50_s,
    quantile_cont(ttft_s, 0.95) filter (status = 'ok' and phase = 'measured') as ttft_p95_s,
    quantile_cont(tpot_s, 0.5) filter (status = 'ok' and phase = 'measured') as tpot_p50_s,
    quantile_cont(e2e_s, 0.5) filter (status = 'ok' and phase = 'measured') as e2e_p50_s,
    quantile_cont(e2e_s, 0.95) filter (status = 'ok' and phase = 'measured') as e2e_p95_s
from request
where run_id = getvariable('run_id') and turn_index is not null
group by turn_index
order by turn_index;
