-- How far an engine's probabilities of a reference's answers are from those of the reference's engine: kl, kl_floor,
-- kl_ratio, same_top, nll_change, logprob_change, other_tokens, other_answers and first_other_token. Grain: one row
-- per answer that both have read.
--
-- kl is the mean Kullback–Leibler divergence per token from the reference's probabilities, nats: a lower bound of that
-- over the whole vocabulary, as tokens that one engine does not list are one bucket, the rest. Each term is
-- p × ln(p / q) − p + q, which is never negative, so that rounding does not add up. floor_kl is the same between two
-- readings by the reference's engine, in different batches.
with reads as (
    select
        spec_json ->> '$.prompts.source.run' as source_run_id,
        spec_json ->> '$.prompts.source.reads[0]' as own_run_id,
        spec_json ->> '$.prompts.source.reads[1]' as again_run_id
    from raw.runs
    where run_id = getvariable('run_id')
),

-- Probabilities are single floats: below 1e-7 a rest is rounding.
tokens as (
    select
        request_id,
        position,
        other.run_id = getvariable('run_id') as is_read,
        own.logprob - other.logprob as nll_change,
        own.top_token_ids[1] <> other.top_token_ids[1] as is_other,
        list_transform(own.top_token_ids, lambda token, place: struct_pack(
            p := exp(own.top_logprobs[place]),
            q := exp(other.top_logprobs[list_position(other.top_token_ids, token)])
        )) as choices,
        list_filter(choices, lambda choice: choice.q is not null) as shared,
        list_append(shared, struct_pack(
            p := greatest(1e-7, own.rest_share + list_sum(list_transform(choices, lambda choice: choice.p))
                - coalesce(list_sum(list_transform(shared, lambda choice: choice.p)), 0)),
            q := greatest(1e-7, other.rest_share
                + list_sum(list_transform(other.top_logprobs, lambda logprob: exp(logprob)))
                - coalesce(list_sum(list_transform(shared, lambda choice: choice.q)), 0))
        )) as buckets,
        list_sum(list_transform(buckets, lambda bucket: bucket.p * ln(bucket.p / bucket.q) - bucket.p + bucket.q)) as kl
    from (from raw.tokens where run_id = (select own_run_id from reads)) as own
    join (
        from raw.tokens where run_id = getvariable('run_id') or run_id = (select again_run_id from reads)
    ) as other using (request_id, position)
)

select
    request_id,
    prompt_id,
    occurrence,
    coalesce(any_value(cluster), prompt_id) as cluster,
    count(*) filter (is_read) as tokens,
    avg(kl) filter (is_read) as kl,
    avg(kl) filter (not is_read) as floor_kl,
    avg(nll_change) filter (is_read) as nll_change,
    count(*) filter (is_read and is_other) as other_tokens,
    min(position) filter (is_read and is_other) + 1 as first_other,
    list(abs(nll_change)) filter (is_read) as logprob_changes
from tokens
join (from raw.requests where run_id = getvariable('run_id')) as requests using (request_id)
left join (from internal.prompt_cluster where run_id = (select source_run_id from reads)) as clusters
    using (prompt_id, occurrence)
group by request_id, prompt_id, occurrence
having count(*) filter (is_read) > 0
order by prompt_id, occurrence, request_id;
