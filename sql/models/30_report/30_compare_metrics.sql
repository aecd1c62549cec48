-- Grain: one row per metric of run_metric, of two runs side by side.
--
-- metric: as in run_metric.
-- unit: as in run_metric.
-- candidate_value: its value in the candidate. NULL if it was not measured.
-- baseline_value: its value in the baseline. NULL if it was not measured.
-- change_share: candidate_value / baseline_value − 1: 0.1 is a tenth more. NULL if the baseline's is 0 or not known.
-- is_better: whether the candidate's is better, however little. NULL if they are equal or one is not known.
-- noise_floor: difference that two equal runs exceed in 5% of pairs; see noise. The larger one if the configurations
--     of both runs were measured, each in its run's environment. NULL if neither was.
-- noise_ratio: |candidate_value − baseline_value| / noise_floor: above 1, the difference is seldom chance. NULL without
--     a noise_floor above 0.
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

find_floors as (
    select noise.metric, noise.unit, max(noise.noise_floor) as noise_floor
    from internal.noise
    join internal.run_conditions using (config_id, environment)
    where run_conditions.run_id in (candidate, baseline)
    group by noise.metric, noise.unit
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
        end as is_better,
        find_floors.noise_floor,
        abs(candidate_value - baseline_value) / nullif(find_floors.noise_floor, 0) as noise_ratio
    from read_candidate
    join read_baseline using (metric, unit)
    left join find_floors using (metric, unit)
)

select * from join_runs;

comment on macro table internal.compare_metrics is 'compare_metrics(candidate, baseline), two run ids: one row per metric of run_metric, side by side, with the noise of equal runs if it was measured. Two runs alone cannot show chance: the gate takes into account how far repeats of a configuration differ.';
