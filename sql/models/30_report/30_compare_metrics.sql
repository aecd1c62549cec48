-- Grain: one row per metric of run_metric, of two runs side by side.
--
-- metric: as in run_metric.
-- unit: as in run_metric.
-- candidate_value: its value in the candidate. NULL if it was not measured.
-- baseline_value: its value in the baseline. NULL if it was not measured.
-- change_share: candidate_value / baseline_value − 1: 0.1 is a tenth more. NULL if the baseline's is 0 or not known.
-- is_better: whether the candidate's is better, however little. NULL if they are equal or one is not known.
create or replace macro internal.compare_metrics(candidate, baseline) as table
with

read_candidate as (
    select metric, unit, higher_is_better, value as candidate_value
    from internal.run_metric
    where run_id = candidate
),

read_baseline as (
    select metric, unit, value as baseline_value
    from internal.run_metric
    where run_id = baseline
),

join_runs as (
    select
        metric,
        unit,
        candidate_value,
        baseline_value,
        candidate_value / nullif(baseline_value, 0) - 1 as change_share,
        case
            when candidate_value <> baseline_value then (candidate_value > baseline_value) = higher_is_better
        end as is_better
    from read_candidate
    join read_baseline using (metric, unit)
)

select * from join_runs;

comment on macro table internal.compare_metrics is 'compare_metrics(candidate, baseline), two run ids: one row per metric of run_metric, side by side. Two runs alone cannot show chance: the gate takes into account how far repeats of a configuration differ.';
