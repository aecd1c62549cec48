-- Grain: one row per judged run × run that judges its answers and has ended.
create or replace view internal.judge_run as
with

join_runs as (
    select distinct
        source_run.source_run_id as run_id,
        source_run.run_id as judge_run_id,
        coalesce(runs.spec_json ->> '$.prompts.source.rubric', runs.name) as rubric,
        source_run.is_pairs,
        runs.model,
        runs.state,
        runs.started_at
    from internal.source_run
    join raw.runs on runs.run_id = source_run.run_id
    where source_run.is_judge and runs.state <> 'running'
)

select * from join_runs;

comment on view internal.judge_run is 'One row per judged run × run that judges its answers and has ended. A judge of pairs has a row for each of both judged runs.';
comment on column internal.judge_run.run_id is 'The judged run.';
comment on column internal.judge_run.judge_run_id is 'The judge''s run.';
comment on column internal.judge_run.rubric is 'The question that it answers: prompts.source.rubric, which is the name of the scorer judge of which it is a part; else the name of its spec. Judges of one rubric are a panel.';
comment on column internal.judge_run.is_pairs is 'Whether it compares pairs of answers.';
comment on column internal.judge_run.model is 'The judge''s model, as its spec names it.';
comment on column internal.judge_run.state is 'State of the judge''s run; see runs.';
comment on column internal.judge_run.started_at is 'When the judge''s run began.';
