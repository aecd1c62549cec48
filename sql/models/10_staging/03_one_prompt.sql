-- Grain: one row per row of a run's prompt set: of several alike the first.
-- columns of: prompts
create or replace view one_prompt as
with

keep_one_prompt as (
    select distinct on (run_id, prompt_id, occurrence) *
    from prompts
)

select * from keep_one_prompt;

comment on view one_prompt is 'One row per row of a run''s prompt set. Of rows that are there twice, which request_integrity counts, one is taken.';
