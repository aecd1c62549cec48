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
comment on column internal.accuracy.run_id is 'The run.';
comment on column internal.accuracy.scorer is 'The scorer, as in scorers.';
comment on column internal.accuracy.kind is 'Which scorer it is.';
comment on column internal.accuracy.ordinal is 'Its place among the run''s scorers.';
comment on column internal.accuracy.samples is 'Scores.';
comment on column internal.accuracy.right_samples is 'Those of them that are 1.';
comment on column internal.accuracy.answered_samples is 'Scores of answers, without errors.';
comment on column internal.accuracy.prompts is 'Different prompts among them.';
comment on column internal.accuracy.score_sum is 'Sum of the scores: right answers, if they are 0 or 1.';
comment on column internal.accuracy.mean is 'Mean score over prompt rows, 0 to 1: each counts once by the mean of its repeats. NULL without scores.';
comment on column internal.accuracy.standard_error is 'Standard error of the mean, the jackknife''s over clusters (CR3): sqrt((G − 1) / G × Σ over clusters of (mean without the cluster − mean)²). NULL for fewer than two clusters.';
comment on column internal.accuracy.effective_samples is 'Independent prompt rows that they are worth. NULL without scores.';
comment on column internal.accuracy.mean_low is 'Lower end of the 95% interval for the mean. NULL if there is none.';
comment on column internal.accuracy.mean_high is 'Upper end.';
comment on column internal.accuracy.mean_without_errors is 'Mean over prompt rows of the mean score of their answered samples, 0 to 1: without errors, which count as 0 in mean. NULL if none was answered.';
