-- Grain: one row per request of a run, answered or not.
-- Where a request was answered twice, one answer counts (a result before an error, then the earlier one) and
-- request_integrity counts the other. An answer without a request is not here, only there.
-- All timestamps of an answer are from one engine and so from one attempt: requests that a crashed engine lost are
-- sent again.
create or replace view internal.stg_requests as
with

join_answers as (
    select
        requests.* exclude (
            prompt_token_ids, sampling_json, rendered, messages_json, media_json, expected_output_tokens,
            due_offset_s, turn_messages_json
        ),
        answers.* exclude (run_id, request_id),
        source_row,
        target,
        has_windows,
        begins_at_s,
        steady_from_s,
        ends_at_s,
        try_cast(sampling_json ->> '$.max_tokens' as bigint) as max_tokens,
        case
            when answers.request_id is null then 'missing'
            when answers.error_kind = 'not_sent' then 'unsent'
            when answers.error_kind is not null then 'error'
            else 'ok'
        end as status
    from internal.one_request as requests
    left join internal.one_answer as answers using (run_id, request_id)
    left join main.prompt using (run_id, prompt_id, occurrence)
    left join (from internal.load_stretch where has_windows) using (run_id, worker, engine_generation)
),

measure_requests as (
    select
        *,
        last_token_at_s - first_token_at_s as decode_s,
        output_tokens - case when reasoning_tokens is null then 0 else hidden_tokens end as streamed_tokens,
        finish_reason = 'length' and (max_tokens is null or output_tokens < max_tokens) as context_limited
    from join_answers
)

select
    run_id,
    request_id,
    prompt_id,
    occurrence,
    repeat_index,
    option_index,
    turn_index,
    turns,
    source_row,
    status,
    case
        when status in ('missing', 'unsent') or worker = 'prepare' then null
        when has_windows is null then 'measured'
        when sent_at_s < begins_at_s then 'warmup'
        when sent_at_s > ends_at_s then 'cooldown'
        when sent_at_s is not null then 'measured'
    end as phase,
    -- Filter on finish time only: the send rate between the windows equals the offered load even if the server is
    -- saturated.
    status = 'ok'
        and (has_windows is null or coalesce(finished_at_s between steady_from_s and ends_at_s, false))
        as is_finished,
    worker,
    engine_generation,
    window_requests,
    due_at_s,
    sent_at_s,
    arrived_at_s,
    queued_at_s,
    scheduled_at_s,
    first_token_at_s,
    last_token_at_s,
    finished_at_s,
    sent_at_s - due_at_s as send_lag_s,
    scheduled_at_s - queued_at_s as queue_s,
    first_token_at_s - scheduled_at_s as prefill_s,
    decode_s,
    first_token_at_s - arrived_at_s as ttft_s,
    streamed_tokens,
    case when decode_s > 0 and streamed_tokens > 1 then decode_s / (streamed_tokens - 1) end as tpot_s,
    finished_at_s - arrived_at_s as e2e_s,
    token_at_s,
    prompt_tokens,
    cached_tokens,
    output_tokens,
    max_tokens,
    preemptions,
    retries,
    finish_reason,
    context_limited,
    case when option_index is null then finish_reason = 'length' and not context_limited end as truncated,
    text,
    target,
    option,
    option_tokens,
    option_logprob,
    error_kind,
    error_message,
    images,
    image_pixels,
    audios,
    audio_s,
    videos,
    video_frames,
    video_s,
    media_bytes,
    media_tokens,
    media_prepare_s,
    draft_tokens,
    acceptance_histogram,
    reasoning_tokens,
    hidden_tokens,
    response_model
from measure_requests;

comment on view internal.stg_requests is 'One row per request of a run, answered or not, with the durations from which every metric is computed. If a request has two answers, one counts: a result before an error, then the earlier.';
