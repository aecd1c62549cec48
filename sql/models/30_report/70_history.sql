-- Grain: one row per run of a history × metric of run_metric that has a value in it.
--
-- `spec` is the name of a spec, the id of a run or a config_id; see find_history.
--
-- run_id: the run.
-- position: its place in the history, from 1.
-- started_at: UTC wall clock at the start of the run.
-- metric: as in run_metric.
-- unit: its unit.
-- higher_is_better: as in run_metric.
-- value: its value in this run.
-- low: lower end of its 95% interval: of accuracy and of percentiles.
--     It is about the requests of this run, and does not cover differences between runs. NULL if there is none.
-- high: upper end.
-- is_counted: whether the value is of a completed run, and for a speed of one without an obstacle (run_conditions):
--     what does not count is shown, and judged nowhere.
create or replace macro main.history(spec) as table
select
    runs.run_id,
    runs.position,
    runs.started_at,
    run_metric.metric,
    run_metric.unit,
    run_metric.higher_is_better,
    run_metric.value,
    run_metric.low,
    run_metric.high,
    runs.state in ('completed', 'imported') and (runs.obstacle is null or run_metric.metric = 'accuracy') as is_counted
from internal.find_history(spec) as runs
join internal.run_metric using (run_id)
where run_metric.value is not null
order by run_metric.metric, runs.position;

comment on macro table main.history is 'history(spec), the name of a spec, the id of a run or a config_id: one row per run and metric, with the interval within the run. Data of the history page.';
