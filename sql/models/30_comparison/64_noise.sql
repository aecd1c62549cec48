-- Grain: one row per configuration × environment × metric of a noise measurement (noise_run).
--
-- N runs on a engines, nᵢ on engine i, have mean squares between and within engines (one-way random effects; Searle,
-- Casella and McCulloch 1992, section 3.6).
create or replace view internal.noise as
with

-- Values less the smallest of their metric: equal values have a variance of exactly 0.
read_values as (
    select
        noise_run.config_id,
        noise_run.environment,
        noise_run.benchmark_id,
        noise_run.engine_run_id,
        run_metric.metric,
        run_metric.unit,
        min(run_metric.value) over measured as lowest_value,
        run_metric.value - min(run_metric.value) over measured as excess
    from internal.noise_run
    join internal.run_metric on run_metric.run_id = noise_run.run_id
    where run_metric.value is not null
    window measured as (
        partition by noise_run.config_id, noise_run.environment, run_metric.metric, run_metric.unit
    )
),

describe_engines as (
    select
        config_id,
        environment,
        benchmark_id,
        metric,
        unit,
        any_value(lowest_value) as lowest_value,
        count(*) as engine_runs,
        avg(excess) as engine_mean,
        var_pop(excess) * count(*) as engine_squares
    from read_values
    group by config_id, environment, benchmark_id, metric, unit, engine_run_id
),

add_means as (
    select
        *,
        sum(engine_runs * engine_mean) over measured / sum(engine_runs) over measured as mean_excess
    from describe_engines
    window measured as (partition by config_id, environment, metric, unit)
),

add_squares as (
    select
        config_id,
        environment,
        benchmark_id,
        metric,
        unit,
        cast(sum(engine_runs) as bigint) as runs,
        count(*) as engines,
        any_value(lowest_value + mean_excess) as mean,
        (sum(engine_runs) - sum(engine_runs ** 2) / sum(engine_runs)) / nullif(count(*) - 1, 0) as runs_per_engine,
        sum(engine_runs * (engine_mean - mean_excess) ** 2) / nullif(count(*) - 1, 0) as between_square,
        sum(engine_squares) / nullif(sum(engine_runs) - count(*), 0) as within_square
    from add_means
    group by config_id, environment, benchmark_id, metric, unit
)

select * from add_squares;

comment on view internal.noise is 'One row per configuration × environment × metric: how much equal runs differ on this machine, from the newest benchmark with five or more of them (noise_run). `assayline benchmark --noise` measures it and shows the noise floor.';
comment on column internal.noise.config_id is 'The configuration; see runs.config_id.';
comment on column internal.noise.environment is 'Machine, versions and prompts; see run_conditions.';
comment on column internal.noise.metric is 'The metric, as in run_metric.';
comment on column internal.noise.unit is 'Its unit.';
comment on column internal.noise.runs is 'Runs with a value.';
comment on column internal.noise.engines is 'Engines that they used.';
comment on column internal.noise.mean is 'Mean over the runs.';
comment on column internal.noise.runs_per_engine is 'n₀ = (N − Σ nᵢ² / N) / (a − 1). NULL if there was one engine.';
comment on column internal.noise.between_square is 'Mean square between engines. NULL if there was one engine.';
comment on column internal.noise.within_square is 'Mean square of runs within an engine. NULL if no engine had two runs.';
