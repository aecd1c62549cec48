-- Grain: one row per run × kind of error × worker.
create or replace view internal.error_breakdown as
with

count_requests as (
    select run_id, count(*) as requests
    from stg_requests
    group by run_id
),

group_errors as (
    select
        run_id,
        error_kind,
        worker,
        count(*) as error_requests,
        arg_min(error_message, row(coalesce(finished_at_s, arrived_at_s, 'infinity'), request_id)) as example_message,
        min(coalesce(finished_at_s, arrived_at_s)) as first_at_s,
        max(coalesce(finished_at_s, arrived_at_s)) as last_at_s
    from stg_requests
    where status = 'error'
    group by run_id, error_kind, worker
),

share_errors as (
    select
        group_errors.run_id,
        group_errors.error_kind,
        group_errors.worker,
        group_errors.error_requests,
        group_errors.error_requests / count_requests.requests as error_share,
        group_errors.example_message,
        group_errors.first_at_s,
        group_errors.last_at_s
    from group_errors
    inner join count_requests on count_requests.run_id = group_errors.run_id
)

select * from share_errors;

comment on view internal.error_breakdown is 'One row per run × kind of error × worker. A run without errors has no row. Requests that were never sent are not errors.';
comment on column internal.error_breakdown.error_kind is 'Kind of error.';
comment on column internal.error_breakdown.worker is 'The worker that recorded it; prepare for requests that never reached an engine.';
comment on column internal.error_breakdown.error_requests is 'Requests that ended so.';
comment on column internal.error_breakdown.error_share is 'Their share of all the run''s requests: error_requests / requests, 0 to 1.';
comment on column internal.error_breakdown.example_message is 'The message of the earliest of them.';
comment on column internal.error_breakdown.first_at_s is 'When the first ended, in seconds since the run''s start (when it arrived, if the end has no timestamp). NULL if none has a stamp.';
comment on column internal.error_breakdown.last_at_s is 'When the last ended, in seconds since the run''s start, as first_at_s.';
