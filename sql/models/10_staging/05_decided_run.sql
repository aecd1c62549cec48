-- Grain: one row per run that was stopped early, because its accuracy was decided.
create or replace view internal.decided_run as
with

read_ends as (
    select
        run_id,
        cast(details_json ->> '$.prompts' as bigint) as prompts,
        cast(details_json ->> '$.look' as integer) as look
    from raw.engine_events
    where event = 'load_ended' and details_json ->> '$.reason' = 'decided'
)

select * from read_ends;

comment on view internal.decided_run is 'One row per run that was stopped early, because its accuracy was decided (gate.stop).';
comment on column internal.decided_run.run_id is 'The run.';
comment on column internal.decided_run.prompts is 'Prompt rows that decided it: the first in the order of the MD5 digests of source_row, in which it asked. Only they have scores.';
comment on column internal.decided_run.look is 'Which look decided it, 1 to 9; see assayline/comparison/looks.py.';
