-- Grain: one row per run some of whose requests were ordered by the length that their answers were expected to have.
with

pair_lengths as (
    select
        run_id,
        greatest(one_request.expected_output_tokens, 1) as expected_tokens,
        request.output_tokens as found_tokens
    from one_request
    join request using (run_id, request_id)
    where one_request.expected_output_tokens is not null
        and request.status = 'ok'
        and request.output_tokens > 0
),

-- Equal lengths share the mean of their places, as in Spearman's coefficient.
rank_lengths as (
    select
        *,
        rank() over (partition by run_id order by expected_tokens)
            + (count(*) over (partition by run_id, expected_tokens) - 1) / 2 as expected_rank,
        rank() over (partition by run_id order by found_tokens)
            + (count(*) over (partition by run_id, found_tokens) - 1) / 2 as found_rank
    from pair_lengths
),

judge_forecasts as (
    select
        run_id,
        count(*) as expected_requests,
        exp(median(abs(ln(found_tokens / expected_tokens)))) as median_error_factor,
        case when count(distinct expected_tokens) > 1 and count(distinct found_tokens) > 1
            then corr(expected_rank, found_rank)
        end as rank_correlation
    from rank_lengths
    group by run_id
)

select * from judge_forecasts
where run_id = getvariable('run_id');
