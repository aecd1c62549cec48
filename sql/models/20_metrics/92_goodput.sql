-- Grain: one row per run × service level objective (SLO) of its spec.
-- A request is good if it is a result and within every limit that the SLO sets. A request without the timestamp does
-- not meet the limit. An answer of at most one token, or
-- whose tokens all came at one moment, has no time per further token and always meets that limit.
--
-- vllm bench serve counts good_requests_per_attempted_s, with one difference: its TPOT ends with the stream, not with
-- the last token.
create or replace view internal.goodput as
with

count_requests as (
    select
        run_id,
        slo,
        count(*) filter (phase = 'measured') as requests,
        count(*) filter (phase = 'measured' and is_good) as good_requests,
        count(*) filter (is_good) as all_good_requests,
        count(*) filter (is_finished and is_good) as finished_good_requests,
        sum(output_tokens) filter (is_finished and is_good) as finished_good_output_tokens
    from judged_request
    group by run_id, slo
),

fill_objectives as (
    select
        slo_limit.run_id,
        slo_limit.slo,
        slo_limit.ttft_limit_s,
        slo_limit.tpot_limit_s,
        slo_limit.e2e_limit_s,
        coalesce(count_requests.requests, 0) as requests,
        coalesce(count_requests.good_requests, 0) as good_requests,
        count_requests.good_requests / nullif(count_requests.requests, 0) as good_share,
        run_summary.measured_s,
        coalesce(count_requests.finished_good_requests, 0) as finished_good_requests,
        case
            when run_summary.requests_per_s is not null
            then count_requests.finished_good_requests / nullif(run_summary.measured_s, 0)
        end as good_requests_per_s,
        case
            when run_summary.requests_per_s is null then null
            when count_requests.finished_good_requests = 0 then 0
            else count_requests.finished_good_output_tokens
        end / nullif(run_summary.measured_s, 0) as good_output_tokens_per_s,
        count_requests.all_good_requests / nullif(run_summary.attempted_s, 0) as good_requests_per_attempted_s
    from slo_limit
    left join count_requests using (run_id, slo)
    left join run_summary using (run_id)
)

select * from fill_objectives;

comment on view internal.goodput is 'One row per run × service level objective (SLO) of its spec: how many requests were answered within its limits, and how many a second. A request is good if it is a result and within every limit that is set; without the stamp that a limit needs it is not, but an answer of at most one token, or whose tokens all came at one moment, passes any tpot_s.';
comment on column internal.goodput.run_id is 'The run.';
comment on column internal.goodput.slo is 'Name of the objective.';
comment on column internal.goodput.ttft_limit_s is 'Longest good ttft_s, seconds. NULL if the SLO does not limit it, like the next two.';
comment on column internal.goodput.tpot_limit_s is 'Longest good tpot_s, seconds.';
comment on column internal.goodput.e2e_limit_s is 'Longest good e2e_s, seconds.';
comment on column internal.goodput.requests is 'Measured requests (stg_requests.phase), results and errors.';
comment on column internal.goodput.good_requests is 'Those of them that are good.';
comment on column internal.goodput.good_share is 'good_requests / requests, 0 to 1. NULL if requests is 0.';
comment on column internal.goodput.measured_s is 'The seconds that throughput is divided by, as in run_summary.';
comment on column internal.goodput.finished_good_requests is 'Good ones among the requests that throughput counts: with windows those that finished between them, so that goodput never exceeds throughput.';
comment on column internal.goodput.good_requests_per_s is 'Goodput, requests per second: finished_good_requests / measured_s. NULL if run_summary.requests_per_s is.';
comment on column internal.goodput.good_output_tokens_per_s is 'Output tokens of these requests / measured_s.';
comment on column internal.goodput.good_requests_per_attempted_s is 'Goodput that counts the time that errors take: good requests, whenever they were sent and finished / run_summary.attempted_s. It is request_goodput of vllm bench serve.';
