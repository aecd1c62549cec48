-- Grain: one row per run × metric, of runs with a load: goodput by objective, what was offered, and whether it kept up.
create or replace view internal.load_value as
with

list_goodput as (
    select
        run_id,
        slo as detail,
        unnest([
            {'metric': 'good_share', 'value': good_share, 'unit': 'share'},
            {'metric': 'good_requests_per_s', 'value': good_requests_per_s, 'unit': 'requests/s'},
            {'metric': 'good_output_tokens_per_s', 'value': good_output_tokens_per_s, 'unit': 'tokens/s'}
        ]) as row,
        requests as n
    from goodput
),

list_loads as (
    select
        run_id,
        unnest([
            {'metric': 'offered_requests_per_s', 'value': offered_requests_per_s, 'unit': 'requests/s'},
            {'metric': 'in_flight_growth_per_s', 'value': in_flight_growth_per_s, 'unit': 'requests/s'},
            {'metric': 'is_saturated', 'value': cast(is_saturated as integer), 'unit': 'flag'}
        ]) as row
    from saturation
),

join_loads as (
    select run_id, row.metric, detail, row.value, n, row.unit, true as higher_is_better from list_goodput
    union all
    select run_id, row.metric, null, row.value, null, row.unit, null from list_loads
    union all
    select run_id, 'kept_up', null, cast(kept_up as integer), requests, 'flag', true from send_lag
),

name_columns as (
    select
        run_id,
        metric,
        'mean' as statistic,
        cast(detail as varchar) as detail,
        cast(value as double) as value,
        cast(null as double) as low,
        cast(null as double) as high,
        cast(n as bigint) as n,
        unit,
        cast(higher_is_better as boolean) as higher_is_better
    from join_loads
)

select * from name_columns;

comment on view internal.load_value is 'One row per run × metric, of runs with a load: goodput by objective, what was offered, and whether it kept up. A source of metric_values.';
comment on column internal.load_value.run_id is 'The run.';
comment on column internal.load_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.load_value.statistic is 'Which statistic of it.';
comment on column internal.load_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.load_value.value is 'The value, in `unit`.';
comment on column internal.load_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.load_value.high is 'Upper end.';
comment on column internal.load_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.load_value.unit is 'Its unit.';
comment on column internal.load_value.higher_is_better is 'Whether more is better. NULL if neither is.';
