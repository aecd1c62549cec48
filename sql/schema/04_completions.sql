-- Grain: one row per answered request: a result or an error, never both.
create table if not exists raw.completions (
    run_id varchar not null,
    request_id varchar not null,
    worker varchar not null,
    engine_generation integer not null,
    window_requests integer,
    due_at_s double,
    sent_at_s double,
    arrived_at_s double,
    queued_at_s double,
    scheduled_at_s double,
    first_token_at_s double,
    last_token_at_s double,
    finished_at_s double,
    prompt_tokens integer,
    cached_tokens integer,
    output_tokens integer,
    preemptions integer,
    retries integer,
    finish_reason varchar,
    stop_reason varchar,
    text varchar,
    reasoning varchar,
    output_token_ids integer[],
    token_at_s double[],
    cumulative_logprob double,
    logprobs_json varchar,
    prompt_logprobs_json varchar,
    option_logprob double,
    error_kind varchar,
    error_message varchar,
    images integer,
    image_pixels bigint,
    audios integer,
    audio_s double,
    videos integer,
    video_frames integer,
    video_s double,
    media_bytes bigint,
    media_tokens integer,
    media_prepare_s double,
    draft_tokens integer,
    acceptance_histogram integer[],
    reasoning_tokens integer,
    hidden_tokens integer,
    response_model varchar
);

comment on table raw.completions is 'One row per answered request: a result (error_kind is NULL) or an error.';
comment on column raw.completions.worker is 'The worker whose engine answered; prepare for rows that never reached an engine; for an imported run, the tool.';
comment on column raw.completions.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column raw.completions.window_requests is 'Maximum requests in flight when this one ran; NULL in an open loop, which has no limit.';
comment on column raw.completions.due_at_s is 'When an open-loop arrival pattern wanted it sent. NULL if it was sent as soon as there was room. Seconds since the run''s start, as all *_at_s.';
comment on column raw.completions.sent_at_s is 'When it was handed to the engine''s process, to the async engine, or for the first time to the server.';
comment on column raw.completions.arrived_at_s is 'When it reached the engine; of a server that is sent_at_s. Seconds since the run''s start.';
comment on column raw.completions.queued_at_s is 'When the engine''s scheduler accepted it; NULL for a server, as scheduled_at_s.';
comment on column raw.completions.scheduled_at_s is 'When it was first scheduled. Seconds since the run''s start.';
comment on column raw.completions.first_token_at_s is 'End of the engine step that made its first token; of a server, when the first event with a token arrived here. Seconds since the run''s start.';
comment on column raw.completions.last_token_at_s is 'End of the engine step that made its last token; of a server, when the last event with a token arrived here. Seconds since the run''s start.';
comment on column raw.completions.finished_at_s is 'When the finished result left the engine. Seconds since the run''s start.';
comment on column raw.completions.prompt_tokens is 'Tokens of the prompt.';
comment on column raw.completions.cached_tokens is 'Prompt tokens served from the prefix cache.';
comment on column raw.completions.output_tokens is 'Tokens generated, the end-of-sequence token included.';
comment on column raw.completions.preemptions is 'How often the scheduler preempted it; NULL if the engine does not report it.';
comment on column raw.completions.retries is 'Number of retries before a server answered, which its latencies contain; NULL if no server was.';
comment on column raw.completions.finish_reason is 'stop, length, abort or repetition, as vLLM names it; of a server any other name, as it came.';
comment on column raw.completions.stop_reason is 'Stop string or token id that ended it; NULL for the end-of-sequence token.';
comment on column raw.completions.text is 'The generated text; of a model that reasons, what comes after its closing tag.';
comment on column raw.completions.reasoning is 'Text that a model wrote before its closing tag. NULL if the spec has no reasoning.';
comment on column raw.completions.output_token_ids is 'The generated token ids.';
comment on column raw.completions.token_at_s is 'One stamp per output token, rounded to 1 µs, if recorded. Seconds since the run''s start.';
comment on column raw.completions.cumulative_logprob is 'Sum of the log-probabilities of the generated tokens, if asked for.';
comment on column raw.completions.logprobs_json is 'Per output token {token id: log-probability}, as JSON, if asked for.';
comment on column raw.completions.prompt_logprobs_json is 'Per prompt token {token id: log-probability}, as JSON, if asked for.';
comment on column raw.completions.option_logprob is 'Sum of the log-probabilities (natural logarithm) of the option''s tokens. NULL for generated answers.';
comment on column raw.completions.error_kind is 'Kind of error, NULL for a result. not_sent: the load ended before its turn, which does not count as an error.';
comment on column raw.completions.error_message is 'Message of the error.';
comment on column raw.completions.images is 'Images of the prompt; NULL, like all columns below, if the prompt has no media or they could not be read.';
comment on column raw.completions.image_pixels is 'Width × height of its images, summed, as the model''s own processing got them: after max_pixels.';
comment on column raw.completions.audios is 'Audio clips of the prompt.';
comment on column raw.completions.audio_s is 'Their length in seconds, summed, as the model got them: after cut_audio.';
comment on column raw.completions.videos is 'Videos of the prompt.';
comment on column raw.completions.video_frames is 'Frames taken from them.';
comment on column raw.completions.video_s is 'Their length in seconds, summed.';
comment on column raw.completions.media_bytes is 'Bytes of the files, or of what came in the row, summed; 0 of synthetic media.';
comment on column raw.completions.media_tokens is 'Prompt tokens that stand for media: prompt_tokens less the text''s own. NULL for a server that does not report it.';
comment on column raw.completions.media_prepare_s is 'Seconds that reading, decoding and the model''s own processing took before the engine could have the prompt; a server''s own processing is not in it.';
comment on column raw.completions.draft_tokens is 'Tokens that speculative decoding proposed for it. NULL without it, or if the engine does not report it per request.';
comment on column raw.completions.acceptance_histogram is 'Its drafts by how many of their tokens the model accepted: element 1 counts those with none, the last those with all. NULL as draft_tokens.';
comment on column raw.completions.reasoning_tokens is 'Output tokens that are reasoning, as a server counts them. NULL if it does not report them, and for other engines.';
comment on column raw.completions.hidden_tokens is 'Reasoning tokens that the server counted and did not send. NULL without reasoning_tokens, or if it sent a part of its reasoning.';
comment on column raw.completions.response_model is 'Name of the model in a server''s answer, which may be another than the requested one. NULL if it gives none, and for other engines.';
