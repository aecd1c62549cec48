-- Grain: one row per row of a run's prompt set: of several alike the first.
-- Kept: as the rows of prompts.
create or replace view one_prompt as
with

keep_one_prompt as (
    select distinct on (run_id, prompt_id, occurrence) *
    from prompts
)

select * from keep_one_prompt;

comment on view one_prompt is 'One row per row of a run''s prompt set. Of rows that are there twice, which request_integrity counts, one is taken.';
comment on column one_prompt.run_id is 'As in prompts.';
comment on column one_prompt.prompt_id is 'As in prompts.';
comment on column one_prompt.occurrence is 'As in prompts.';
comment on column one_prompt.source_row is 'As in prompts.';
comment on column one_prompt.source_id is 'As in prompts.';
comment on column one_prompt.messages_json is 'As in prompts.';
comment on column one_prompt.target is 'As in prompts.';
comment on column one_prompt.options is 'As in prompts.';
comment on column one_prompt.metadata_json is 'As in prompts.';
