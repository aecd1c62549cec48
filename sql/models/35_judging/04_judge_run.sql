-- Grain: one row per judged run × run that judges its answers and has ended.
create or replace view internal.judge_run as
with

read_sources as (
    select
        *,
        spec_json -> '$.prompts.source' as source,
        source ->> '$.kind' = 'pairs' as is_pairs,
        unnest(case
            when is_pairs then [source ->> '$.runs[0]', source ->> '$.runs[1]']
            when source ->> '$.kind' = 'run' then [source ->> '$.run']
        end) as judged_run_id
    from raw.runs
    where state <> 'running' and run_id in (select run_id from raw.scorers where kind = 'verdict')
)

select distinct
    judged_run_id as run_id,
    run_id as judge_run_id,
    coalesce(source ->> '$.rubric', name) as rubric,
    is_pairs,
    model,
    state,
    started_at
from read_sources;

comment on view internal.judge_run is 'One row per judged run × run that judges its answers and has ended. A judge of pairs has a row for each of both judged runs.';
