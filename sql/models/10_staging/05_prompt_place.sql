-- Grain: one row per row of a run's prompt set.
create or replace view internal.prompt_place as
select
    run_id,
    prompt_id,
    occurrence,
    row_number() over (partition by run_id order by md5(cast(source_row as varchar)), source_row) as place
from prompt;

comment on view internal.prompt_place is 'One row per row of a run''s prompt set: its place in the random order in which a run with gate.stop decided asks.';
comment on column internal.prompt_place.run_id is 'The run.';
comment on column internal.prompt_place.prompt_id is 'The prompt.';
comment on column internal.prompt_place.occurrence is 'Which of the run''s rows with that prompt_id.';
comment on column internal.prompt_place.place is 'Place in the order of the MD5 digests of source_row, 1 for the first. The order is the same in all runs of a prompt set.';
