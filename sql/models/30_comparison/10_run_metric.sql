-- Grain: one row per run × metric that can be compared between runs.
create or replace view run_metric as
with

stack_summaries as (
    select run_id, metric, value
    from (
        select run_id, requests_per_s, output_tokens_per_s, total_tokens_per_s, accuracy
        from run_summary
    )
    unpivot include nulls (value for metric in (requests_per_s, output_tokens_per_s, total_tokens_per_s, accuracy))
),

name_percentiles as (
    select
        run_id,
        replace(metric, '_s', '') || '_p' || cast(cast(percentile * 100 as integer) as varchar) || '_s' as metric,
        value_s as value
    from latency_percentile
    where metric in ('ttft_s', 'tpot_s', 'e2e_s') and percentile in (0.5, 0.95, 0.99)
),

join_metrics as (
    select * from stack_summaries
    union all
    select * from name_percentiles
),

describe_metrics as (
    select
        run_id,
        metric,
        value,
        case
            when metric = 'accuracy' then 'share'
            when metric = 'requests_per_s' then 'requests/s'
            when metric like '%tokens_per_s' then 'tokens/s'
            else 's'
        end as unit,
        unit <> 's' as higher_is_better
    from join_metrics
)

select * from describe_metrics;

comment on view run_metric is 'One row per run × metric that can be compared between runs. compare_repeats compares them over repeats.';
comment on column run_metric.run_id is 'The run.';
comment on column run_metric.metric is 'requests_per_s, output_tokens_per_s, total_tokens_per_s or accuracy of run_summary, or <latency>_p<percentile>_s: ttft, tpot and e2e at 50, 95 and 99 of latency_percentile.';
comment on column run_metric.value is 'Its value in this run. NULL where it is undefined or was not measured.';
comment on column run_metric.unit is 'requests/s, tokens/s, share or s.';
comment on column run_metric.higher_is_better is 'True for throughput and accuracy, false for latencies.';
