-- Grain: one row per request of a run, answered or not.
create or replace view main.request as
select
    * exclude (text, target, option, option_tokens, option_logprob, token_at_s)
    rename (window_requests as max_concurrency)
from internal.stg_requests;

comment on view main.request is 'One row per request of a run, answered or not: status, timestamps, durations, tokens and error. Its texts are in answer.';
comment on column main.request.max_concurrency is 'Maximum requests in flight when this one ran. NULL in an open loop, which has no limit.';
comment on column main.request.option_index is '0-based option whose likelihood was asked for. NULL for generated answers.';
comment on column main.request.turn_index is '0-based turn of its conversation. NULL if the conversation is not sent turn by turn.';
comment on column main.request.turns is 'How many turns its conversation has; NULL if turn_index is.';
comment on column main.request.source_row is '0-based position of the prompt''s row in its source.';
comment on column main.request.status is 'ok: a result; error: an error row; unsent: the end of the load came before its turn; missing: no answer (yet).';
comment on column main.request.phase is 'measured, or warmup or cooldown if it was sent in a window that the load leaves out of metrics (load_stretch); without such windows all are measured. Latencies, throughput, goodput and metrics of the load are of measured requests; counts, tokens, scores and what was in flight are of all. NULL if it never reached an engine, or if there are windows but no sent_at_s.';
comment on column main.request.is_finished is 'Whether throughput and goodput count it: a result that finished between the load''s windows, if it has any (begins_at_s to ends_at_s of load_stretch), whenever it was sent.';
comment on column main.request.worker is 'The worker that answered, or prepare if the request never reached an engine. NULL if the answer is missing.';
comment on column main.request.engine_generation is 'Engines that this worker had started before the one that answered, over all attempts of the run.';
comment on column main.request.due_at_s is 'When an arrival pattern wanted it sent, NULL offline. Seconds since the run''s start, as all *_at_s.';
comment on column main.request.sent_at_s is 'When the worker handed it to the process of the engine that answered it. Seconds since the run''s start.';
comment on column main.request.arrived_at_s is 'When it reached the engine that answered it. Requests that an engine lost in a crash are sent again, and their first attempts leave no timestamps. Seconds since the run''s start.';
comment on column main.request.queued_at_s is 'When the engine''s scheduler accepted it.';
comment on column main.request.scheduled_at_s is 'When it was first scheduled. Seconds since the run''s start.';
comment on column main.request.first_token_at_s is 'End of the engine step that made its first token. Seconds since the run''s start.';
comment on column main.request.last_token_at_s is 'End of the engine step that made its last token. Seconds since the run''s start.';
comment on column main.request.finished_at_s is 'When the finished result left the engine. Seconds since the run''s start.';
comment on column main.request.send_lag_s is 'Seconds by which it was sent late: sent_at_s − due_at_s. NULL without an arrival pattern.';
comment on column main.request.queue_s is 'Seconds in the scheduler''s queue: scheduled_at_s − queued_at_s.';
comment on column main.request.prefill_s is 'Seconds from scheduling to the first token: first_token_at_s − scheduled_at_s.';
comment on column main.request.decode_s is 'Seconds from the first to the last token: last_token_at_s − first_token_at_s. 0 for a single token.';
comment on column main.request.ttft_s is 'Time to first token, seconds: first_token_at_s − arrived_at_s. Contains queue_s.';
comment on column main.request.streamed_tokens is 'Output tokens that arrived between first_token_at_s and last_token_at_s: output_tokens − hidden_tokens. NULL if a server sent a part of its reasoning.';
comment on column main.request.tpot_s is 'Time per output token after the first, seconds: decode_s / (streamed_tokens − 1). NULL for one token or none, and if all came at one moment.';
comment on column main.request.e2e_s is 'End-to-end latency, seconds: finished_at_s − arrived_at_s.';
comment on column main.request.prompt_tokens is 'Tokens of the prompt.';
comment on column main.request.cached_tokens is 'Prompt tokens served from the prefix cache.';
comment on column main.request.output_tokens is 'Tokens generated, the end-of-sequence token included.';
comment on column main.request.max_tokens is 'The most output tokens that the request allowed; NULL: as many as the context has room for.';
comment on column main.request.preemptions is 'How often the scheduler preempted it; NULL if the engine does not report it.';
comment on column main.request.retries is 'Number of retries before a server answered; NULL if no server was.';
comment on column main.request.finish_reason is 'stop, length, abort or repetition; of a server any other name, as it came. NULL for an error or a missing answer.';
comment on column main.request.context_limited is 'Whether the context ended the output, not max_tokens: finish_reason is length and output_tokens < max_tokens, or max_tokens is NULL. NULL without a finish_reason.';
comment on column main.request.truncated is 'Whether max_tokens cut off the output: finish_reason is length, and context_limited is false. NULL without a finish_reason, and for options, whose likelihood is asked for.';
comment on column main.request.error_kind is 'Kind of error, NULL for a result.';
comment on column main.request.error_message is 'Message of the error.';
comment on column main.request.images is 'Images of the prompt; NULL, like all columns below, if it has no media.';
comment on column main.request.image_pixels is 'Width × height of its images, summed, as the model''s own processing got them.';
comment on column main.request.audios is 'Audio clips of the prompt.';
comment on column main.request.audio_s is 'Their length in seconds, summed.';
comment on column main.request.videos is 'Videos of the prompt.';
comment on column main.request.video_frames is 'Frames taken from them.';
comment on column main.request.video_s is 'Their length in seconds, summed.';
comment on column main.request.media_bytes is 'Bytes of the files, or of what came in the row.';
comment on column main.request.media_tokens is 'Prompt tokens that stand for media; NULL for a server that does not report it.';
comment on column main.request.media_prepare_s is 'Seconds of reading, decoding and the model''s own processing before the engine could have it. Not in ttft_s offline, as it happens ahead; in ttft_s of the async engine, as it is in a server''s.';
comment on column main.request.draft_tokens is 'Tokens that speculative decoding proposed for it. NULL without it, or if the engine does not report it per request.';
comment on column main.request.acceptance_histogram is 'Its drafts by how many of their tokens the model accepted, from 0 on. NULL as draft_tokens.';
comment on column main.request.reasoning_tokens is 'Output tokens that are reasoning, as a server counts them; NULL if it does not report them.';
comment on column main.request.hidden_tokens is 'Reasoning tokens that the server counted and did not send. NULL without reasoning_tokens, or if it sent a part of its reasoning.';
comment on column main.request.response_model is 'Name of the model in a server''s answer; NULL if it gives none.';
