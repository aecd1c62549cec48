-- Grain: one row per run that has ended × metric × statistic × detail.
-- columns of: raw.metric_values, raw.runs
create or replace view main.metric_value as
with

join_runs as (
    select
        metric_values.run_id,
        runs.name,
        runs.model,
        runs.prompt_set,
        runs.config_id,
        runs.benchmark_id,
        runs.state,
        runs.started_at,
        metric_values.metric,
        metric_values.statistic,
        metric_values.detail,
        metric_values.value,
        metric_values.low,
        metric_values.high,
        metric_values.n,
        metric_values.unit,
        metric_values.higher_is_better
    from raw.metric_values
    join raw.runs on runs.run_id = metric_values.run_id
)

select * from join_runs;

comment on view main.metric_value is 'One row per run that has ended × metric × statistic × detail: every number that was measured, with its interval, and the run that it is of. Stored when a run ends.';
