-- Grain: one row per run with speculative decoding × position in the draft, from 1 on.
--
-- An engine step with a draft makes the accepted tokens and one of the model's own, so a mean of accepted tokens + 1
-- tokens a step: what the literature calls acceptance length (Leviathan et al. 2023). A draft that is never accepted
-- changes no answer, only the speed. Ok requests count, whenever they were sent.
with

list_drafts as (
    select
        run_id,
        unnest(acceptance_histogram) as drafts,
        generate_subscripts(acceptance_histogram, 1) - 1 as accepted_tokens
    from request
    where status = 'ok' and acceptance_histogram is not null
),

add_drafts as (
    select run_id, accepted_tokens, sum(drafts) as drafts
    from list_drafts
    group by run_id, accepted_tokens
),

add_tokens as (
    select run_id, sum(draft_tokens) as draft_tokens, count(*) as requests
    from request
    where status = 'ok' and acceptance_histogram is not null
    group by run_id
),

-- A token is accepted if that at its position is: those before it are, too.
accept_positions as (
    select
        run_id,
        accepted_tokens as position,
        sum(drafts) over (partition by run_id) as drafts,
        sum(drafts) over (partition by run_id order by accepted_tokens desc) as accepted_drafts,
        sum(drafts * accepted_tokens) over (partition by run_id) as accepted_tokens
    from add_drafts
),

rate_positions as (
    select
        run_id,
        position,
        accepted_drafts / nullif(drafts, 0) as accepted_share,
        requests,
        cast(drafts as bigint) as drafts,
        cast(draft_tokens as bigint) as draft_tokens,
        cast(accepted_tokens as bigint) as accepted_tokens,
        1 + accepted_tokens / nullif(drafts, 0) as acceptance_length,
        accepted_tokens / nullif(draft_tokens, 0) as draft_acceptance
    from accept_positions
    join add_tokens using (run_id)
    where position > 0
)

select * from rate_positions
where run_id = getvariable('run_id') and drafts > 0
order by position;
