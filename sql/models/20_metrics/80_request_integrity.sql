-- Grain: one row per run that any of runs, requests or completions names.
create or replace view internal.request_integrity as
with

list_runs as (
    select run_id from raw.runs
    union
    select run_id from raw.requests
    union
    select run_id from raw.completions
),

count_run_rows as (
    select run_id, count(*) as run_rows, max(expected_requests) as expected_requests
    from raw.runs
    group by run_id
),

count_prompt_rows as (
    select run_id, count(*) - count(distinct row(prompt_id, occurrence)) as duplicate_prompt_rows
    from raw.prompts
    group by run_id
),

count_request_rows as (
    select run_id, count(*) - count(distinct request_id) as duplicate_requests
    from raw.requests
    group by run_id
),

count_completion_rows as (
    select
        run_id,
        count(*) - count(distinct request_id) as duplicate_completions,
        count(*) filter (error_kind is not null and finish_reason is not null) as ambiguous_completions,
        count(*) filter (error_kind is null and len(token_at_s) <> output_tokens) as incomplete_token_stamps
    from raw.completions
    group by run_id
),

-- Left joins, not anti joins: a filter on run_id reaches both of their sides.
find_orphan_completions as (
    select completions.run_id, count(*) as completions_without_request
    from raw.completions
    left join raw.requests
        on requests.run_id = completions.run_id
        and requests.request_id = completions.request_id
    where requests.request_id is null
    group by completions.run_id
),

find_orphan_requests as (
    select requests.run_id, count(*) as requests_without_prompt
    from raw.requests
    left join raw.prompts
        on prompts.run_id = requests.run_id
        and prompts.prompt_id = requests.prompt_id
        and prompts.occurrence = requests.occurrence
    where prompts.prompt_id is null
    group by requests.run_id
),

check_requests as (
    select
        run_id,
        count(*) as prepared_requests,
        count(*) filter (status <> 'missing') as accounted_requests,
        count(*) filter (least(
            send_lag_s, arrived_at_s - sent_at_s, queued_at_s - arrived_at_s, queue_s, prefill_s, decode_s,
            finished_at_s - last_token_at_s, ttft_s, e2e_s
        ) < 0) as negative_durations
    from stg_requests
    group by run_id
),

join_counts as (
    select
        list_runs.run_id,
        abs(coalesce(count_run_rows.run_rows, 0) - 1) as wrong_run_rows,
        coalesce(count_prompt_rows.duplicate_prompt_rows, 0) as duplicate_prompt_rows,
        coalesce(count_request_rows.duplicate_requests, 0) as duplicate_requests,
        coalesce(count_completion_rows.duplicate_completions, 0) as duplicate_completions,
        coalesce(find_orphan_requests.requests_without_prompt, 0) as requests_without_prompt,
        coalesce(find_orphan_completions.completions_without_request, 0) as completions_without_request,
        greatest(0,
            coalesce(count_run_rows.expected_requests, check_requests.prepared_requests, 0)
            - coalesce(check_requests.accounted_requests, 0)
        ) as missing_requests,
        greatest(0, coalesce(check_requests.prepared_requests, 0) - count_run_rows.expected_requests)
            as unexpected_requests,
        coalesce(count_completion_rows.ambiguous_completions, 0) as ambiguous_completions,
        coalesce(check_requests.negative_durations, 0) as negative_durations,
        coalesce(count_completion_rows.incomplete_token_stamps, 0) as incomplete_token_stamps
    from list_runs
    left join count_run_rows on count_run_rows.run_id = list_runs.run_id
    left join count_prompt_rows on count_prompt_rows.run_id = list_runs.run_id
    left join count_request_rows on count_request_rows.run_id = list_runs.run_id
    left join count_completion_rows on count_completion_rows.run_id = list_runs.run_id
    left join find_orphan_completions on find_orphan_completions.run_id = list_runs.run_id
    left join find_orphan_requests on find_orphan_requests.run_id = list_runs.run_id
    left join check_requests on check_requests.run_id = list_runs.run_id
),

judge_runs as (
    select
        *,
        wrong_run_rows + duplicate_prompt_rows + duplicate_requests + duplicate_completions + requests_without_prompt
            + completions_without_request + missing_requests + unexpected_requests + ambiguous_completions
            + negative_durations + incomplete_token_stamps = 0 as is_sound
    from join_counts
)

select * from judge_runs;

comment on view internal.request_integrity is 'One row per run that any of runs, requests or completions names: what must all be 0 when a run has ended, as count in = count out.';
comment on column internal.request_integrity.wrong_run_rows is 'Rows of runs that are missing (1) or too many: |rows − 1|.';
comment on column internal.request_integrity.duplicate_prompt_rows is 'Rows of prompts whose (prompt_id, occurrence) the run has already.';
comment on column internal.request_integrity.duplicate_requests is 'Rows of requests whose request_id the run has already.';
comment on column internal.request_integrity.duplicate_completions is 'Rows of completions whose request_id the run has already.';
comment on column internal.request_integrity.requests_without_prompt is 'Requests whose prompt is not there.';
comment on column internal.request_integrity.completions_without_request is 'Completions whose request is not there.';
comment on column internal.request_integrity.missing_requests is 'Requests still to be answered: expected_requests (prepared ones, if that is NULL) − those with a result, an error or the note that they were not sent, not below 0.';
comment on column internal.request_integrity.unexpected_requests is 'Prepared requests beyond expected_requests.';
comment on column internal.request_integrity.ambiguous_completions is 'Completions that have both an error_kind and a finish_reason.';
comment on column internal.request_integrity.negative_durations is 'Requests with a stamp before an earlier one in due, sent, arrived, queued, scheduled, first token, last token, finished: a negative duration.';
comment on column internal.request_integrity.incomplete_token_stamps is 'Results whose number of recorded token stamps is not output_tokens.';
comment on column internal.request_integrity.is_sound is 'Whether all of these are 0.';
