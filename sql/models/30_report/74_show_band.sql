-- Grain: one row per metric of run_metric that a baseline has a value of.
--
-- `baseline` is the id of a run. Its repeats are the runs of its configuration in its environment without an obstacle
-- (run_conditions) up to it, the newest ten, as in choose_repeats; for a run in a benchmark, those of the benchmark.
--
-- metric: as in run_metric.
-- unit: its unit.
-- value: for accuracy, the baseline's own; for a speed, the median over its repeats.
-- low: for accuracy, the lower end of its 95% interval; for a speed, the lowest of its repeats.
-- high: the upper end, or the highest.
-- repeats: number of those runs: 1 for accuracy, and for speed if the baseline itself has an obstacle.
create or replace macro internal.show_band(baseline) as table
with

read_baseline as (
    select * from internal.run_conditions where run_id = baseline
),

find_repeats as (
    select run_conditions.run_id
    from read_baseline
    join internal.run_conditions
        on run_conditions.config_id = read_baseline.config_id
        and run_conditions.environment = read_baseline.environment
        and run_conditions.benchmark_id is not distinct from read_baseline.benchmark_id
    where run_conditions.obstacle is null
        and (read_baseline.benchmark_id is not null or run_conditions.started_at <= read_baseline.started_at)
    qualify row_number() over (order by run_conditions.started_at desc, run_conditions.run_id desc) <= 10
),

choose_runs as (
    select run_id from find_repeats
    union
    select run_id from read_baseline where not exists (select 1 from find_repeats)
),

measure_speeds as (
    select
        metric,
        any_value(unit) as unit,
        median(value) as value,
        min(value) as low,
        max(value) as high,
        count(*) as repeats
    from internal.run_metric
    where run_id in (select run_id from choose_runs) and metric <> 'accuracy' and value is not null
    group by metric
),

take_accuracy as (
    select metric, unit, value, low, high, 1
    from internal.run_metric
    where run_id = baseline and metric = 'accuracy' and value is not null
),

join_accuracy as (
    select * from measure_speeds
    union all
    select * from take_accuracy
)

select * from join_accuracy;

comment on macro table internal.show_band is 'show_band(baseline), the id of a run: one row per metric, the level that later runs are compared with, and the interval of the baseline''s accuracy or the range of its repeats'' speeds.';
