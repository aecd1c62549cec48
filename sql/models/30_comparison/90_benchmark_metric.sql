-- Grain: one row per benchmark × configuration × metric of run_metric.
create or replace view internal.benchmark_metric as
with

read_repeats as (
    select
        run_conditions.benchmark_id,
        run_conditions.config_id,
        run_metric.metric,
        run_metric.unit,
        run_metric.value
    from run_conditions
    join run_metric using (run_id)
    where run_conditions.benchmark_id is not null and run_conditions.obstacle is null
),

summarize_repeats as (
    select
        benchmark_id,
        config_id,
        metric,
        any_value(unit) as unit,
        count(value) as repeats,
        median(value) as median_value,
        min(value) as lowest_value,
        max(value) as highest_value
    from read_repeats
    group by benchmark_id, config_id, metric
)

select * from summarize_repeats;

comment on view internal.benchmark_metric is 'One row per benchmark × configuration × metric: median and range over its repeats. The report of the benchmark tests whether two configurations differ.';
comment on column internal.benchmark_metric.benchmark_id is 'The benchmark.';
comment on column internal.benchmark_metric.config_id is 'The configuration; see runs.config_id.';
comment on column internal.benchmark_metric.metric is 'The metric, as in run_metric.';
comment on column internal.benchmark_metric.unit is 'Its unit.';
comment on column internal.benchmark_metric.repeats is 'Repeats with a value: runs without an obstacle in run_conditions.';
comment on column internal.benchmark_metric.median_value is 'Median over the repeats. NULL if none has a value.';
comment on column internal.benchmark_metric.lowest_value is 'The lowest of them.';
comment on column internal.benchmark_metric.highest_value is 'The highest of them.';
