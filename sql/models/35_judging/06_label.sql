-- Grain: one row per labelled sample of a run × rubric. A sample is a prompt row × a repeat.
-- columns of: raw.labels
create or replace view main.label as
select *
from raw.labels
qualify label is not null and row_number() over (
    partition by run_id, prompt_id, occurrence, repeat_index, rubric
    order by labelled_at desc
) = 1;

comment on view main.label is 'One row per sample (prompt row × repeat) of a run × rubric that a person labelled: the newest label. The audit of judges reads it.';
