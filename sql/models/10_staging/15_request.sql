-- Grain: one row per request of a run, answered or not.
-- columns of: internal.stg_requests
create or replace view main.request as
with

leave_out_texts as (
    select
        * exclude (text, target, option, option_tokens, option_logprob, token_at_s)
        rename (window_requests as max_concurrency)
    from internal.stg_requests
)

select * from leave_out_texts;

comment on view main.request is 'One row per request of a run, answered or not: status, timestamps, durations, tokens and error. Its texts are in answer.';
comment on column main.request.max_concurrency is 'Maximum requests in flight when this one ran. NULL in an open loop, which has no limit.';
