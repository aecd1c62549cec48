-- Grain: one row per row of a run's prompt set: duplicates collapsed to the first.
-- columns of: raw.prompts
create or replace view main.prompt as
select prompts.*
from raw.prompts
left join (
    select run_id, rowid as place
    from raw.prompts
    qualify row_number() over (partition by run_id, prompt_id, occurrence order by rowid) > 1
) as others on others.run_id = prompts.run_id and others.place = prompts.rowid
where others.place is null;

comment on view main.prompt is 'One row per row of a run''s prompt set. Duplicates, which request_integrity counts, are collapsed to one.';
