-- Grain: one row per turn of a run whose conversations were sent turn by turn.
--
-- A later turn's prompt begins with all of the turn before and its answer, so with a prefix cache most of it is there
-- already: prompts grow from turn to turn, and the time to the first token need not. Conversations have different
-- numbers of turns, so a later turn has fewer requests, and they are those of the longer conversations.
create or replace view internal.turn_latency as
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
    from stg_requests
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

select * from read_quantiles;

comment on view internal.turn_latency is 'One row per turn of a run whose conversations were sent turn by turn (prompts.turns each): how long prompts were, how much of them the prefix cache had, and how long answers took. Means and shares are over ok requests, percentiles over measured ok requests.';
comment on column internal.turn_latency.run_id is 'The run.';
comment on column internal.turn_latency.turn_index is '0-based turn of the conversations.';
comment on column internal.turn_latency.requests is 'Conversations that have this turn, each as often as it was asked.';
comment on column internal.turn_latency.ok_requests is 'Those of them with a result.';
comment on column internal.turn_latency.error_requests is 'Those of them with an error row; earlier_turn: the turn was not sent, as an earlier turn has no answer.';
comment on column internal.turn_latency.mean_prompt_tokens is 'Mean length of the prompts, in tokens: what was said and answered before, and what this turn adds.';
comment on column internal.turn_latency.mean_output_tokens is 'Mean length of the answers, in tokens.';
comment on column internal.turn_latency.cached_share is 'Sum of cached_tokens / sum of prompt_tokens, 0 to 1, over requests whose cached_tokens are known. NULL if none are.';
comment on column internal.turn_latency.ttft_p50_s is 'Median time to first token, seconds.';
comment on column internal.turn_latency.ttft_p95_s is 'Its 95th percentile, seconds.';
comment on column internal.turn_latency.tpot_p50_s is 'Median time per output token after the first, seconds.';
comment on column internal.turn_latency.e2e_p50_s is 'Median end-to-end latency, seconds.';
comment on column internal.turn_latency.e2e_p95_s is 'Its 95th percentile, seconds.';
