-- Grain: one row per run some of whose requests were ordered by the length that their answers were expected to have.
create or replace view internal.length_forecast as
with

pair_lengths as (
    select
        run_id,
        greatest(one_request.expected_output_tokens, 1) as expected_tokens,
        stg_requests.output_tokens as found_tokens
    from one_request
    join stg_requests using (run_id, request_id)
    where one_request.expected_output_tokens is not null
        and stg_requests.status = 'ok'
        and stg_requests.output_tokens > 0
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

select * from judge_forecasts;

comment on view internal.length_forecast is 'One row per run some of whose requests were ordered by expected lengths (engine.order): how well answers of earlier runs predicted lengths in this one. A wrong prediction costs only speed.';
comment on column internal.length_forecast.expected_requests is 'Ok requests of whose answer a length was expected.';
comment on column internal.length_forecast.median_error_factor is 'By what factor the found length was off the expected one, either way, in the median: exp of the median of |ln(found / expected)|. 1 means no error.';
comment on column internal.length_forecast.rank_correlation is 'Spearman''s rank correlation of expected and found lengths: 1 is the right order, 0 none. NULL if all are equally long.';
