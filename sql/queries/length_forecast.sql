-- Grain: one row, if requests of the run were ordered by the length that their answers were expected to have.
with pairs as (
    select
        greatest(one_request.expected_output_tokens, 1) as expected_tokens,
        request.output_tokens as found_tokens
    from one_request
    join request using (run_id, request_id)
    where run_id = getvariable('run_id')
        and one_request.expected_output_tokens is not null
        and request.status = 'ok'
        and request.output_tokens > 0
),

-- Equal lengths share the mean of their places, as in Spearman's coefficient.
ranks as (
    select
        *,
        rank() over (order by expected_tokens) + (count(*) over (partition by expected_tokens) - 1) / 2
            as expected_rank,
        rank() over (order by found_tokens) + (count(*) over (partition by found_tokens) - 1) / 2 as found_rank
    from pairs
)

select
    count(*) as expected_requests,
    exp(median(abs(ln(found_tokens / expected_tokens)))) as median_error_factor,
    case when count(distinct expected_tokens) > 1 and count(distinct found_tokens) > 1
        then corr(expected_rank, found_rank)
    end as rank_correlation
from ranks
having count(*) > 0;
