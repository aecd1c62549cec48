-- Grain: one row per token of an answer that two runs of kind reread have read.
--
-- kl is a lower bound of the divergence over the whole vocabulary: tokens that one engine does not list are one bucket,
-- the rest. Each term is p × ln(p / q) − p + q, which is never negative, so that rounding does not add up.
--
-- request_id: the request, in both runs.
-- position: 0-based position in the answer.
-- token_id: the token that the answer has there.
-- reference_logprob: its log-probability for the reference's engine.
-- candidate_logprob: its log-probability for the candidate's engine.
-- is_same_top: whether both engines have the same first choice.
-- kl: Kullback–Leibler divergence of the candidate's probabilities from the reference's, nats.
create or replace macro internal.compare_tokens(reference, candidate) as table
with

pair_tokens as (
    select
        own.*,
        other.logprob as candidate_logprob,
        other.top_token_ids[1] as other_top,
        list_transform(own.top_token_ids, lambda token, place: struct_pack(
            p := exp(own.top_logprobs[place]),
            q := exp(other.top_logprobs[list_position(other.top_token_ids, token)])
        )) as choices,
        other.rest_share + list_sum(list_transform(other.top_logprobs, lambda logprob: exp(logprob))) as other_share
    from (select * from raw.tokens where run_id = reference) as own
    join (select * from raw.tokens where run_id = candidate) as other using (request_id, position)
),

list_shared as (
    select
        *,
        list_filter(choices, lambda choice: choice.q is not null) as shared,
        rest_share + list_sum(list_transform(choices, lambda choice: choice.p)) as share
    from pair_tokens
),

-- Probabilities are single floats: below 1e-7 a rest is rounding.
add_rests as (
    select
        *,
        list_append(shared, struct_pack(
            p := greatest(1e-7, share - coalesce(list_sum(list_transform(shared, lambda choice: choice.p)), 0)),
            q := greatest(1e-7, other_share - coalesce(list_sum(list_transform(shared, lambda choice: choice.q)), 0))
        )) as buckets
    from list_shared
)

select
    request_id,
    position,
    token_id,
    logprob as reference_logprob,
    candidate_logprob,
    top_token_ids[1] = other_top as is_same_top,
    list_sum(list_transform(buckets, lambda bucket: bucket.p * ln(bucket.p / bucket.q) - bucket.p + bucket.q)) as kl
from add_rests;

comment on macro table internal.compare_tokens is 'compare_tokens(reference, candidate), two runs of kind reread: one row per token of an answer that both have read, with the divergence of their probabilities.';
