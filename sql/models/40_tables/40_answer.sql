-- Grain: one row per request of a run, answered or not.
-- columns of: raw.completions, raw.requests
create or replace view main.answer as
with

join_answers as (
    select
        one_request.run_id,
        one_request.request_id,
        one_request.prompt_id,
        one_request.occurrence,
        one_request.repeat_index,
        one_request.option_index,
        one_request.turn_index,
        one_answer.text,
        one_answer.reasoning,
        one_answer.finish_reason,
        one_answer.stop_reason,
        one_answer.error_kind,
        one_answer.error_message,
        one_request.option,
        one_answer.option_logprob,
        one_answer.output_token_ids,
        one_answer.token_at_s,
        one_answer.cumulative_logprob,
        one_answer.logprobs_json,
        one_answer.prompt_logprobs_json,
        one_request.rendered,
        one_request.messages_json,
        one_request.turn_messages_json,
        one_request.prompt_token_ids,
        one_request.sampling_json,
        one_request.media_json
    from internal.one_request
    left join internal.one_answer using (run_id, request_id)
)

select * from join_answers;

comment on view main.answer is 'One row per request of a run, answered or not: the prompt as the model received it and the answer, as text, token ids, timestamps per token and log-probabilities. Its durations are in request.';
