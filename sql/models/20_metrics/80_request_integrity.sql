-- Grain: one row per run that any table of its rows names.
create or replace view internal.request_integrity as
with

list_counts as (
    select run_id, count(*) as run_rows, max(expected_requests) as expected_requests from raw.runs group by run_id
    union all by name
    select run_id, count(*) - count(distinct (prompt_id, occurrence)) as duplicate_prompt_rows
    from raw.prompts
    group by run_id
    union all by name
    select run_id, count(*) - count(distinct request_id) as duplicate_requests from raw.requests group by run_id
    union all by name
    select
        run_id,
        count(*) - count(distinct request_id) as duplicate_completions,
        count(*) filter (error_kind is not null and finish_reason is not null) as ambiguous_completions,
        count(*) filter (error_kind is null and len(token_at_s) <> output_tokens) as incomplete_token_stamps
    from raw.completions
    group by run_id
    union all by name
    -- Left joins, not anti joins: a filter on run_id reaches both of their sides.
    select completions.run_id, count(*) filter (requests.request_id is null) as completions_without_request
    from raw.completions
    left join raw.requests
        on requests.run_id = completions.run_id
        and requests.request_id = completions.request_id
    group by completions.run_id
    union all by name
    select requests.run_id, count(*) filter (prompts.prompt_id is null) as requests_without_prompt
    from raw.requests
    left join raw.prompts
        on prompts.run_id = requests.run_id
        and prompts.prompt_id = requests.prompt_id
        and prompts.occurrence = requests.occurrence
    group by requests.run_id
    union all by name
    select
        run_id,
        count(*) as prepared,
        count(*) filter (status <> 'missing') as accounted,
        count(*) filter (least(
            send_lag_s, arrived_at_s - sent_at_s, queued_at_s - arrived_at_s, queue_s, prefill_s, decode_s,
            finished_at_s - last_token_at_s, ttft_s, e2e_s
        ) < 0) as negative_durations
    from stg_requests
    group by run_id
),

join_counts as (
    select
        run_id,
        abs(coalesce(max(run_rows), 0) - 1) as wrong_run_rows,
        coalesce(max(duplicate_prompt_rows), 0) as duplicate_prompt_rows,
        coalesce(max(duplicate_requests), 0) as duplicate_requests,
        coalesce(max(duplicate_completions), 0) as duplicate_completions,
        coalesce(max(requests_without_prompt), 0) as requests_without_prompt,
        coalesce(max(completions_without_request), 0) as completions_without_request,
        greatest(0, coalesce(max(expected_requests), max(prepared), 0) - coalesce(max(accounted), 0))
            as missing_requests,
        greatest(0, coalesce(max(prepared), 0) - max(expected_requests)) as unexpected_requests,
        coalesce(max(ambiguous_completions), 0) as ambiguous_completions,
        coalesce(max(negative_durations), 0) as negative_durations,
        coalesce(max(incomplete_token_stamps), 0) as incomplete_token_stamps
    from list_counts
    group by run_id
)

select *, list_sum([*columns(* exclude (run_id))]) = 0 as is_sound from join_counts;

comment on view internal.request_integrity is 'One row per run that any of runs, requests or completions names: what must all be 0 when a run has ended, as count in = count out.';
