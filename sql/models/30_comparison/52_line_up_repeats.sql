-- Grain: one row per metric of run_metric × run with a value, on either side.
--
-- Both arguments are lists of run ids. The newest ten of each with a value count (a run id begins with its start
-- time), few enough to enumerate all assignments to two sides.
--
-- metric: the metric, as in run_metric.
-- unit: its unit.
-- higher_is_better: as in run_metric.
-- is_candidate: whether the run is of the first list.
-- run_id: the run.
-- value: its value.
-- position: 1 for the first run of the metric, and so on, the second list's before the first's.
create or replace macro internal.line_up_repeats(candidate_runs, baseline_runs) as table
with

list_sides as (
    select unnest(candidate_runs) as run_id, true as is_candidate
    union all
    select unnest(baseline_runs) as run_id, false as is_candidate
),

read_values as (
    select
        run_metric.metric,
        run_metric.unit,
        run_metric.higher_is_better,
        list_sides.is_candidate,
        run_id,
        run_metric.value
    from list_sides
    join internal.run_metric using (run_id)
    where run_metric.value is not null
    qualify row_number() over (
        partition by run_metric.metric, list_sides.is_candidate
        order by run_id desc
    ) <= 10
),

number_values as (
    select *, row_number() over (partition by metric order by is_candidate, run_id) as position
    from read_values
)

select * from number_values;

comment on macro table internal.line_up_repeats is 'line_up_repeats(candidate_runs, baseline_runs), two lists of run ids: one row per metric and run, with its value.';
