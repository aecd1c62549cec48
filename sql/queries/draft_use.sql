-- Grain: one row per position in the draft, from 1 on, of a run with speculative decoding.
--
-- An engine step with a draft makes the accepted tokens and one of the model's own, so a mean of accepted tokens + 1
-- tokens a step: what the literature calls acceptance length (Leviathan et al. 2023). A draft that is never accepted
-- changes no answer, only the speed. Ok requests count, whenever they were sent.
with drafted as (
    select request_id, draft_tokens, acceptance_histogram
    from request
    where run_id = getvariable('run_id') and status = 'ok' and acceptance_histogram is not null
),

counts as (
    select position, sum(drafts) as drafts
    from (
        select unnest(acceptance_histogram) as drafts, generate_subscripts(acceptance_histogram, 1) - 1 as position
        from drafted
    )
    group by position
),

-- A token is accepted if that at its position is: those before it are, too.
accepted as (
    select
        position,
        sum(drafts) over (order by position desc) as accepted_drafts,
        sum(drafts) over () as drafts,
        sum(drafts * position) over () as accepted_tokens
    from counts
)

select
    position,
    accepted_drafts / drafts as accepted_share,
    requests,
    cast(drafts as bigint) as drafts,
    cast(totals.draft_tokens as bigint) as draft_tokens,
    cast(accepted_tokens as bigint) as accepted_tokens,
    1 + accepted_tokens / drafts as acceptance_length,
    accepted_tokens / nullif(totals.draft_tokens, 0) as draft_acceptance
from accepted, (select sum(draft_tokens) as draft_tokens, count(*) as requests from drafted) as totals
where position > 0 and drafts > 0
order by position;
