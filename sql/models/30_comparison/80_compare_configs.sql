-- Grain: one row per metric of run_metric that both configurations have a value for, in one unit.
--
-- Repeats are all runs of a configuration without an obstacle (run_conditions), in the environment in which it ran
-- last. Accuracy is left out, as compare_runs compares it by prompt. Tests and
-- intervals are those of a benchmark and of the gate.
--
-- metric: the metric, as in run_metric.
-- unit: its unit.
-- candidate_repeats: runs of the candidate that count.
-- baseline_repeats: runs of the baseline that count.
-- candidate_median: median over the candidate's repeats.
-- candidate_lowest: their lowest value.
-- candidate_highest: their highest value.
-- baseline_median: median over the baseline's repeats.
-- baseline_lowest: their lowest value.
-- baseline_highest: their highest value.
-- relative_shift: by how much the candidate's median is higher, relative to |baseline_median|. NULL if that is 0.
create or replace macro main.compare_configs(candidate, baseline) as table
with

list_repeats as (
    select config_id = candidate as is_candidate, run_id
    from internal.run_conditions
    where config_id in (candidate, baseline) and obstacle is null
    qualify environment = last(environment order by started_at, run_id) over (partition by config_id)
)

select
    metric,
    any_value(unit) as unit,
    count(*) filter (is_candidate) as candidate_repeats,
    count(*) filter (not is_candidate) as baseline_repeats,
    median(value) filter (is_candidate) as candidate_median,
    min(value) filter (is_candidate) as candidate_lowest,
    max(value) filter (is_candidate) as candidate_highest,
    median(value) filter (not is_candidate) as baseline_median,
    min(value) filter (not is_candidate) as baseline_lowest,
    max(value) filter (not is_candidate) as baseline_highest,
    (candidate_median - baseline_median) / nullif(abs(baseline_median), 0) as relative_shift
from list_repeats
join internal.run_metric using (run_id)
where metric <> 'accuracy' and value is not null
group by metric
having candidate_repeats > 0 and baseline_repeats > 0 and count(distinct unit) = 1;

comment on macro table main.compare_configs is 'compare_configs(candidate, baseline), two config_ids: one row per metric, medians and ranges of speed and cost over the repeats of two configurations.';
