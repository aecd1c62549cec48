-- Grain: one row per request of a run: of several alike the first.
-- Kept: as the rows of requests.
create or replace view one_request as
with

keep_one_request as (
    select distinct on (run_id, request_id) *
    from requests
)

select * from keep_one_request;

comment on view one_request is 'One row per request of a run. Of requests that are there twice, which request_integrity counts, one is taken.';
comment on column one_request.run_id is 'As in requests.';
comment on column one_request.request_id is 'As in requests.';
comment on column one_request.prompt_id is 'As in requests.';
comment on column one_request.occurrence is 'As in requests.';
comment on column one_request.repeat_index is 'As in requests.';
comment on column one_request.prompt_token_ids is 'As in requests.';
comment on column one_request.sampling_json is 'As in requests.';
comment on column one_request.rendered is 'As in requests.';
comment on column one_request.option_index is 'As in requests.';
comment on column one_request.option is 'As in requests.';
comment on column one_request.option_tokens is 'As in requests.';
comment on column one_request.messages_json is 'As in requests.';
