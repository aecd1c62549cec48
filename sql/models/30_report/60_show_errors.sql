-- Grain: one row per kind of error of a run, at most `most_kinds`: the request of that kind that ended first.
--
-- request_id: the request.
-- prompt_id: its prompt.
-- error_kind: as in completions.
-- error_message: message of the error.
-- rendered: the prompt as the model read it.
create or replace macro internal.show_errors(run, most_kinds) as table
with

choose_requests as (
    select run_id, request_id, prompt_id, error_kind, error_message
    from internal.stg_requests
    where run_id = run and status = 'error'
    qualify row_number() over (partition by error_kind order by finished_at_s nulls last, request_id) = 1
    order by error_kind
    limit most_kinds
),

join_prompts as (
    select
        choose_requests.request_id,
        choose_requests.prompt_id,
        choose_requests.error_kind,
        choose_requests.error_message,
        requests.rendered
    from choose_requests
    join raw.requests using (run_id, request_id)
    where requests.run_id = run
    order by choose_requests.error_kind
)

select * from join_prompts;

comment on macro table internal.show_errors is 'show_errors(run, most_kinds): of each kind of error the request that ended first, with its prompt.';
