-- Grain: one row per run whose client was overloaded, so that its latencies are not the engine's.
--
-- Stamps of the async backend are made in the engine, so late reading does not move them.
create or replace view internal.overload as
with

find_flags as (
    select
        metric_values.run_id,
        bool_or(metric = 'kept_up') as sent_late,
        bool_or(metric = 'client_kept_up') as read_late
    from raw.metric_values
    join raw.runs on runs.run_id = metric_values.run_id
    where value = 0
        and (metric = 'kept_up' or (metric = 'client_kept_up' and runs.spec_json ->> '$.engine.backend' = 'server'))
    group by metric_values.run_id
)

select
    *,
    'its client '
        || concat_ws(' and ', case when sent_late then 'sent late' end, case when read_late then 'read late' end)
        as obstacle
from find_flags;

comment on view internal.overload is 'One row per run whose client was overloaded, so that its latencies are not the engine''s.';
