-- Grain: one row per request of a run, answered or not.
-- columns of: main.request, raw.completions, raw.requests, raw.prompts
create or replace view main.answer as
with

gather_scores as (
    select
        run_id,
        prompt_id,
        occurrence,
        repeat_index,
        map_from_entries(list((scorer, value) order by scorer)) as scores
    from raw.scores
    group by run_id, prompt_id, occurrence, repeat_index
)

select
    run_id,
    stg_requests.request_id,
    prompt_id,
    occurrence,
    repeat_index,
    stg_requests.option_index,
    stg_requests.turn_index,
    prompt.source_id,
    prompt.source_row,
    prompt.messages_json ->> '$[#-1].content' as question,
    prompt.target,
    one_answer.text,
    one_answer.reasoning,
    gather_scores.scores,
    stg_requests.status,
    stg_requests.sent_at_s,
    stg_requests.ttft_s,
    stg_requests.tpot_s,
    stg_requests.e2e_s,
    stg_requests.prompt_tokens,
    stg_requests.output_tokens,
    one_answer.finish_reason,
    one_answer.stop_reason,
    one_answer.error_kind,
    one_answer.error_message,
    prompt.metadata_json,
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
from internal.stg_requests
join internal.one_request using (run_id, request_id, prompt_id, occurrence, repeat_index)
left join internal.one_answer using (run_id, request_id)
left join main.prompt using (run_id, prompt_id, occurrence)
left join gather_scores using (run_id, prompt_id, occurrence, repeat_index);

comment on view main.answer is 'One row per request of a run, answered or not: question, target, answer, scores and times, and the prompt as the model received it. Its other durations are in request.';
comment on column main.answer.question is 'Text of the prompt''s last message; JSON if it has several parts. NULL if a file was imported without prompts.';
comment on column main.answer.scores is 'Score by scorer, of the sample that the request belongs to: all its options or turns have the same. scores[''exact_match''] is one. NULL before the run has ended, and without scorers.';
