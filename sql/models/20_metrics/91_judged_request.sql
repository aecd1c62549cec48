-- Grain: one row per answered request × service level objective (SLO) of its run's spec.
create or replace view internal.judged_request as
with

judge_requests as (
    select
        slo_limit.run_id,
        slo_limit.slo,
        stg_requests.request_id,
        stg_requests.phase,
        stg_requests.is_finished,
        stg_requests.finished_at_s,
        stg_requests.output_tokens,
        stg_requests.status = 'ok'
            and (ttft_limit_s is null or coalesce(ttft_s <= ttft_limit_s, false))
            and (
                tpot_limit_s is null
                or coalesce(streamed_tokens <= 1 or decode_s = 0 or tpot_s <= tpot_limit_s, false)
            )
            and (e2e_limit_s is null or coalesce(e2e_s <= e2e_limit_s, false)) as is_good
    from slo_limit
    join stg_requests using (run_id)
    where stg_requests.status in ('ok', 'error')
)

select * from judge_requests;

comment on view internal.judged_request is 'One row per answered request × service level objective (SLO) of its run''s spec: whether it is good.';
comment on column internal.judged_request.run_id is 'The run.';
comment on column internal.judged_request.slo is 'Name of the objective.';
comment on column internal.judged_request.request_id is 'The request.';
comment on column internal.judged_request.phase is 'As in stg_requests, like the next three columns.';
comment on column internal.judged_request.is_finished is 'Whether throughput counts it.';
comment on column internal.judged_request.finished_at_s is 'When it finished, in seconds since the run''s start.';
comment on column internal.judged_request.output_tokens is 'Tokens of its answer.';
comment on column internal.judged_request.is_good is 'Whether it is a result within every limit that the SLO sets; see goodput.';
