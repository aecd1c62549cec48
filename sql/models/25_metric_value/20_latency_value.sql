-- Grain: one row per run × latency × percentile, and the lag of requests that were sent on a schedule.
create or replace view internal.latency_value as
with

name_percentiles as (
    select
        run_id,
        metric,
        'p' || cast(cast(percentile * 1000 as integer) / 10 as varchar) as statistic,
        value_s as value,
        low_s as low,
        high_s as high,
        n,
        false as higher_is_better
    from latency_percentile
),

name_lags as (
    select
        run_id,
        'send_lag_s' as metric,
        unnest([
            {'statistic': 'p50', 'value': p50_s},
            {'statistic': 'p95', 'value': p95_s},
            {'statistic': 'p99', 'value': p99_s},
            {'statistic': 'max', 'value': max_s}
        ]) as row,
        requests as n
    from send_lag
),

join_latencies as (
    select run_id, metric, statistic, value, low, high, n, higher_is_better from name_percentiles
    union all
    select run_id, metric, row.statistic, row.value, null, null, n, false from name_lags
),

name_columns as (
    select
        run_id,
        metric,
        replace(statistic, '.0', '') as statistic,
        cast(null as varchar) as detail,
        cast(value as double) as value,
        cast(low as double) as low,
        cast(high as double) as high,
        cast(n as bigint) as n,
        's' as unit,
        higher_is_better
    from join_latencies
)

select * from name_columns;

comment on view internal.latency_value is 'One row per run × latency × percentile, and the lag of requests that were sent on a schedule. A source of metric_values.';
comment on column internal.latency_value.run_id is 'The run.';
comment on column internal.latency_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.latency_value.statistic is 'Which statistic of it.';
comment on column internal.latency_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.latency_value.value is 'The value, in `unit`.';
comment on column internal.latency_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.latency_value.high is 'Upper end.';
comment on column internal.latency_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.latency_value.unit is 'Its unit.';
comment on column internal.latency_value.higher_is_better is 'Whether more is better. NULL if neither is.';
