-- Grain: one row per run × scorer × metric: the mean score, what it is without errors, of answers that max_tokens cut
-- off and of the others, pass@k and the majority vote.
create or replace view internal.score_value as
with

list_accuracies as (
    select
        run_id,
        scorer,
        unnest([
            {'metric': 'accuracy', 'value': mean, 'low': mean_low, 'high': mean_high, 'n': samples},
            {'metric': 'accuracy_without_errors', 'value': mean_without_errors, 'low': null, 'high': null,
                'n': samples},
            {'metric': 'scored_prompts', 'value': prompts, 'low': null, 'high': null, 'n': samples}
        ]) as row
    from accuracy
),

split_truncated as (
    select
        run_id,
        scorer,
        case when truncated then 'accuracy_truncated' else 'accuracy_not_truncated' end as metric,
        avg(value) as mean,
        count(*) as samples
    from raw.scores
    join stg_samples using (run_id, prompt_id, occurrence, repeat_index)
    where truncated is not null
    group by run_id, scorer, truncated
),

list_repeats as (
    select run_id, scorer, 'pass@' || k as metric, mean, mean_low, mean_high, prompts
    from pass_at_k
    union all
    select run_id, scorer, 'majority_vote', mean, mean_low, mean_high, prompts
    from majority_vote
),

join_scores as (
    select run_id, scorer, row.metric, row.value, row.low, row.high, row.n from list_accuracies
    union all
    select run_id, scorer, metric, mean, null, null, samples from split_truncated
    union all
    select run_id, scorer, metric, mean, mean_low, mean_high, prompts from list_repeats
),

name_columns as (
    select
        run_id,
        metric,
        case when metric = 'scored_prompts' then 'total' else 'mean' end as statistic,
        scorer as detail,
        cast(value as double) as value,
        cast(low as double) as low,
        cast(high as double) as high,
        cast(n as bigint) as n,
        case when metric = 'scored_prompts' then 'prompts' else 'share' end as unit,
        case when metric <> 'scored_prompts' then true end as higher_is_better
    from join_scores
)

select * from name_columns;

comment on view internal.score_value is 'One row per run × scorer × metric: the mean score, what it is without errors, of answers that max_tokens cut off and of the others, pass@k and the majority vote. A source of metric_values.';
comment on column internal.score_value.run_id is 'The run.';
comment on column internal.score_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.score_value.statistic is 'Which statistic of it.';
comment on column internal.score_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.score_value.value is 'The value, in `unit`.';
comment on column internal.score_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.score_value.high is 'Upper end.';
comment on column internal.score_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.score_value.unit is 'Its unit.';
comment on column internal.score_value.higher_is_better is 'Whether more is better. NULL if neither is.';
