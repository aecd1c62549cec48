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
        ends_at_s,
        try_cast(sampling_json ->> '$.max_tokens' as bigint) as max_tokens,
        case
            when answers.request_id is null then 'missing'
            when answers.error_kind = 'not_sent' then 'unsent'
            when answers.error_kind is not null then 'error'
            else 'ok'
        end as status
    from raw.requests
    left join raw.completions as answers using (run_id, request_id)
    left join raw.prompts using (run_id, prompt_id, occurrence)
    left join (from internal.load_stretch where has_windows) using (run_id, worker, engine_generation)
    qualify row_number() over (
        partition by requests.run_id, requests.request_id
        order by error_kind is not null, finished_at_s nulls last, answers.worker, answers.engine_generation
    ) = 1
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
        and (has_windows is null or coalesce(finished_at_s between begins_at_s and ends_at_s, false))
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
comment on column internal.stg_requests.run_id is 'The run.';
comment on column internal.stg_requests.request_id is 'The request.';
comment on column internal.stg_requests.prompt_id is 'The prompt.';
comment on column internal.stg_requests.occurrence is 'Which of the run''s rows with that prompt_id.';
comment on column internal.stg_requests.repeat_index is '0-based repeat.';
comment on column internal.stg_requests.option_index is '0-based option whose likelihood was asked for. NULL for generated answers.';
comment on column internal.stg_requests.turn_index is '0-based turn of its conversation. NULL if the conversation is not sent turn by turn.';
comment on column internal.stg_requests.turns is 'How many turns its conversation has; NULL if turn_index is.';
comment on column internal.stg_requests.source_row is '0-based position of the prompt''s row in its source.';
comment on column internal.stg_requests.status is 'ok: a result; error: an error row; unsent: the end of the load came before its turn; missing: no answer (yet).';
comment on column internal.stg_requests.phase is 'measured, or warmup or cooldown if it was sent in a window that the load leaves out of metrics (load_stretch); without such windows all are measured. Latencies, throughput, goodput and metrics of the load are of measured requests; counts, tokens, scores and what was in flight are of all. NULL if it never reached an engine, or if there are windows but no sent_at_s.';
comment on column internal.stg_requests.is_finished is 'Whether throughput and goodput count it: a result that finished between the load''s windows, if it has any (begins_at_s to ends_at_s of load_stretch), whenever it was sent.';
comment on column internal.stg_requests.worker is 'The worker that answered, or prepare if the request never reached an engine. NULL if the answer is missing.';
comment on column internal.stg_requests.engine_generation is 'Engines that this worker had started before the one that answered, over all attempts of the run.';
comment on column internal.stg_requests.window_requests is 'Maximum requests in flight when this one ran; NULL in an open loop, which has no limit.';
comment on column internal.stg_requests.due_at_s is 'When an arrival pattern wanted it sent, NULL offline. Seconds since the run''s start, as all *_at_s.';
comment on column internal.stg_requests.sent_at_s is 'When the worker handed it to the process of the engine that answered it. Seconds since the run''s start.';
comment on column internal.stg_requests.arrived_at_s is 'When it reached the engine that answered it. Requests that an engine lost in a crash are sent again, and their first attempts leave no timestamps. Seconds since the run''s start.';
comment on column internal.stg_requests.queued_at_s is 'When the engine''s scheduler accepted it.';
comment on column internal.stg_requests.scheduled_at_s is 'When it was first scheduled. Seconds since the run''s start.';
comment on column internal.stg_requests.first_token_at_s is 'End of the engine step that made its first token. Seconds since the run''s start.';
comment on column internal.stg_requests.last_token_at_s is 'End of the engine step that made its last token. Seconds since the run''s start.';
comment on column internal.stg_requests.finished_at_s is 'When the finished result left the engine. Seconds since the run''s start.';
comment on column internal.stg_requests.send_lag_s is 'Seconds by which it was sent late: sent_at_s − due_at_s. NULL without an arrival pattern.';
comment on column internal.stg_requests.queue_s is 'Seconds in the scheduler''s queue: scheduled_at_s − queued_at_s.';
comment on column internal.stg_requests.prefill_s is 'Seconds from scheduling to the first token: first_token_at_s − scheduled_at_s.';
comment on column internal.stg_requests.decode_s is 'Seconds from the first to the last token: last_token_at_s − first_token_at_s. 0 for a single token.';
comment on column internal.stg_requests.ttft_s is 'Time to first token, seconds: first_token_at_s − arrived_at_s. Contains queue_s.';
comment on column internal.stg_requests.streamed_tokens is 'Output tokens that arrived between first_token_at_s and last_token_at_s: output_tokens − hidden_tokens. NULL if a server sent a part of its reasoning.';
comment on column internal.stg_requests.tpot_s is 'Time per output token after the first, seconds: decode_s / (streamed_tokens − 1). NULL for one token or none, and if all came at one moment.';
comment on column internal.stg_requests.e2e_s is 'End-to-end latency, seconds: finished_at_s − arrived_at_s.';
comment on column internal.stg_requests.token_at_s is 'One stamp per output token, if recorded. Seconds since the run''s start.';
comment on column internal.stg_requests.prompt_tokens is 'Tokens of the prompt.';
comment on column internal.stg_requests.cached_tokens is 'Prompt tokens served from the prefix cache.';
comment on column internal.stg_requests.output_tokens is 'Tokens generated, the end-of-sequence token included.';
comment on column internal.stg_requests.max_tokens is 'The most output tokens that the request allowed; NULL: as many as the context has room for.';
comment on column internal.stg_requests.preemptions is 'How often the scheduler preempted it; NULL if the engine does not report it.';
comment on column internal.stg_requests.retries is 'Number of retries before a server answered; NULL if no server was.';
comment on column internal.stg_requests.finish_reason is 'stop, length, abort or repetition; of a server any other name, as it came. NULL for an error or a missing answer.';
comment on column internal.stg_requests.context_limited is 'Whether the context ended the output, not max_tokens: finish_reason is length and output_tokens < max_tokens, or max_tokens is NULL. NULL without a finish_reason.';
comment on column internal.stg_requests.truncated is 'Whether max_tokens cut off the output: finish_reason is length, and context_limited is false. NULL without a finish_reason, and for options, whose likelihood is asked for.';
comment on column internal.stg_requests.text is 'The generated text; of a model that reasons, what comes after its closing tag.';
comment on column internal.stg_requests.target is 'The expected answer. NULL if the prompt has none.';
comment on column internal.stg_requests.option is 'The answer whose likelihood was asked for. NULL for generated answers.';
comment on column internal.stg_requests.option_tokens is 'How many of the prompt''s last tokens are the option.';
comment on column internal.stg_requests.option_logprob is 'Sum of the log-probabilities (natural logarithm) of the option''s tokens.';
comment on column internal.stg_requests.error_kind is 'Kind of error, NULL for a result.';
comment on column internal.stg_requests.error_message is 'Message of the error.';
comment on column internal.stg_requests.images is 'Images of the prompt; NULL, like all columns below, if it has no media.';
comment on column internal.stg_requests.image_pixels is 'Width × height of its images, summed, as the model''s own processing got them.';
comment on column internal.stg_requests.audios is 'Audio clips of the prompt.';
comment on column internal.stg_requests.audio_s is 'Their length in seconds, summed.';
comment on column internal.stg_requests.videos is 'Videos of the prompt.';
comment on column internal.stg_requests.video_frames is 'Frames taken from them.';
comment on column internal.stg_requests.video_s is 'Their length in seconds, summed.';
comment on column internal.stg_requests.media_bytes is 'Bytes of the files, or of what came in the row.';
comment on column internal.stg_requests.media_tokens is 'Prompt tokens that stand for media; NULL for a server that does not report it.';
comment on column internal.stg_requests.media_prepare_s is 'Seconds of reading, decoding and the model''s own processing before the engine could have it. Not in ttft_s offline, as it happens ahead; in ttft_s of the async engine, as it is in a server''s.';
comment on column internal.stg_requests.draft_tokens is 'Tokens that speculative decoding proposed for it. NULL without it, or if the engine does not report it per request.';
comment on column internal.stg_requests.acceptance_histogram is 'Its drafts by how many of their tokens the model accepted, from 0 on. NULL as draft_tokens.';
comment on column internal.stg_requests.reasoning_tokens is 'Output tokens that are reasoning, as a server counts them; NULL if it does not report them.';
comment on column internal.stg_requests.hidden_tokens is 'Reasoning tokens that the server counted and did not send. NULL without reasoning_tokens, or if it sent a part of its reasoning.';
comment on column internal.stg_requests.response_model is 'Name of the model in a server''s answer; NULL if it gives none.';
