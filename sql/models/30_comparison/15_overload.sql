-- Grain: one row per run whose client was overloaded, so that its latencies are not the engine's.
--
-- Stamps of the async backend are made in the engine, so late reading does not move them.
create or replace view internal.overload as
select
    metric_values.run_id,
    bool_or(metric = 'kept_up') as sent_late,
    'its client ' || string_agg(
        case metric when 'kept_up' then 'sent late' else 'read late' end, ' and ' order by metric desc
    ) as obstacle
from raw.metric_values
join raw.runs on runs.run_id = metric_values.run_id
where value = 0
    and (metric = 'kept_up' or (metric = 'client_kept_up' and runs.spec_json ->> '$.engine.backend' = 'server'))
group by metric_values.run_id;

comment on view internal.overload is 'One row per run whose client was overloaded, so that its latencies are not the engine''s.';
