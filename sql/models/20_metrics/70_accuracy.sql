-- Grain: one row per run that has ended × scorer.
create or replace view internal.accuracy as
select
    scorers.run_id,
    scorers.scorer,
    any_value(scorers.kind) as kind,
    any_value(scorers.ordinal) as ordinal,
    coalesce(max(n) filter (metric = 'accuracy' and statistic = 'mean'), 0) as samples,
    cast(coalesce(max(value) filter (metric = 'right_samples'), 0) as bigint) as right_samples,
    coalesce(max(n) filter (metric = 'accuracy_without_errors'), 0) as answered_samples,
    cast(coalesce(max(value) filter (metric = 'scored_prompts'), 0) as bigint) as prompts,
    max(value) filter (metric = 'score_sum') as score_sum,
    max(value) filter (metric = 'accuracy' and statistic = 'mean') as mean,
    max(value) filter (metric = 'standard_error' and statistic = 'accuracy') as standard_error,
    max(value) filter (metric = 'effective_n' and statistic = 'accuracy') as effective_samples,
    max(low) filter (metric = 'accuracy') as mean_low,
    max(high) filter (metric = 'accuracy') as mean_high,
    max(value) filter (metric = 'accuracy_without_errors') as mean_without_errors
from raw.scorers
left join raw.metric_values on metric_values.run_id = scorers.run_id and metric_values.detail = scorers.scorer
group by scorers.run_id, scorers.scorer;

comment on view internal.accuracy is 'One row per run that has ended × scorer: the mean of its scores, with its uncertainty, as metric_values has it. Errors are scores of 0; what was never answered has none.';
