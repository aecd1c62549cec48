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
comment on column internal.judge_run.run_id is 'The judged run.';
comment on column internal.judge_run.judge_run_id is 'The judge''s run.';
comment on column internal.judge_run.rubric is 'The question that it answers: prompts.source.rubric, which is the name of the scorer judge of which it is a part; else the name of its spec. Judges of one rubric are a panel.';
comment on column internal.judge_run.is_pairs is 'Whether it compares pairs of answers.';
comment on column internal.judge_run.model is 'The judge''s model, as its spec names it.';
comment on column internal.judge_run.state is 'State of the judge''s run; see runs.';
comment on column internal.judge_run.started_at is 'When the judge''s run began.';
