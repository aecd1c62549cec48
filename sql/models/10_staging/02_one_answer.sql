-- Grain: one row per answered request of a run: the answer that counts.
-- Where a request was answered twice, a result counts before an error, then the earlier one.
-- Kept: as the rows of completions.
create or replace view one_answer as
with

keep_one_answer as (
    select *
    from completions
    qualify row_number() over (
        partition by run_id, request_id
        order by error_kind is not null, finished_at_s nulls last, worker, engine_generation
    ) = 1
)

select * from keep_one_answer;

comment on view one_answer is 'One row per answered request of a run: of two answers a result counts before an error, then the earlier. request_integrity counts the others.';
comment on column one_answer.run_id is 'As in completions.';
comment on column one_answer.request_id is 'As in completions.';
comment on column one_answer.worker is 'As in completions.';
comment on column one_answer.engine_generation is 'As in completions.';
comment on column one_answer.window_requests is 'As in completions.';
comment on column one_answer.due_at_s is 'As in completions.';
comment on column one_answer.sent_at_s is 'As in completions.';
comment on column one_answer.arrived_at_s is 'As in completions.';
comment on column one_answer.queued_at_s is 'As in completions.';
comment on column one_answer.scheduled_at_s is 'As in completions.';
comment on column one_answer.first_token_at_s is 'As in completions.';
comment on column one_answer.last_token_at_s is 'As in completions.';
comment on column one_answer.finished_at_s is 'As in completions.';
comment on column one_answer.prompt_tokens is 'As in completions.';
comment on column one_answer.cached_tokens is 'As in completions.';
comment on column one_answer.output_tokens is 'As in completions.';
comment on column one_answer.preemptions is 'As in completions.';
comment on column one_answer.retries is 'As in completions.';
comment on column one_answer.finish_reason is 'As in completions.';
comment on column one_answer.stop_reason is 'As in completions.';
comment on column one_answer.text is 'As in completions.';
comment on column one_answer.reasoning is 'As in completions.';
comment on column one_answer.output_token_ids is 'As in completions.';
comment on column one_answer.token_at_s is 'As in completions.';
comment on column one_answer.cumulative_logprob is 'As in completions.';
comment on column one_answer.logprobs_json is 'As in completions.';
comment on column one_answer.prompt_logprobs_json is 'As in completions.';
comment on column one_answer.option_logprob is 'As in completions.';
comment on column one_answer.error_kind is 'As in completions.';
comment on column one_answer.error_message is 'As in completions.';
