-- Grain: one row per row of a run's prompt set: duplicates collapsed to the first.
-- columns of: raw.prompts
create or replace view main.prompt as
select distinct on (run_id, prompt_id, occurrence) *
from raw.prompts;

comment on view main.prompt is 'One row per row of a run''s prompt set. Duplicates, which request_integrity counts, are collapsed to one.';
