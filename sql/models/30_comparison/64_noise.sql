-- Grain: one row per configuration × environment × metric of run_metric.
--
-- One-way random effects: a run is the mean + an effect of its engine + an effect of its own. For N runs on a engines,
-- engine i with nᵢ runs, n₀ = (N − Σ nᵢ² / N) / (a − 1), and mean squares B between and W within engines, the
-- components are W and (B − W) / n₀ (Searle, Casella and McCulloch 1992, section 3.6). The variance of a run on a
-- fresh engine is B / n₀ + (1 − 1 / n₀) × W, with Satterthwaite's (1946) degrees of freedom, rounded down; W with
-- N − a degrees if B ≤ W; B with a − 1 degrees if no engine has two runs.
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
),

split_variance as (
    select
        *,
        case
            when between_square > within_square then (between_square - within_square) / runs_per_engine
            when between_square <= within_square then 0
        end as engine_variance,
        case
            when within_square is null then between_square
            when between_square <= within_square then within_square
            else between_square / runs_per_engine + (1 - 1 / runs_per_engine) * within_square
        end as run_variance,
        case
            when within_square is null then engines - 1
            when between_square <= within_square then runs - engines
            else floor(run_variance ** 2 / (
                (between_square / runs_per_engine) ** 2 / (engines - 1)
                + ((1 - 1 / runs_per_engine) * within_square) ** 2 / (runs - engines)
            ))
        end as degrees
    from add_squares
),

find_floors as (
    select
        config_id,
        environment,
        benchmark_id,
        metric,
        unit,
        runs,
        engines,
        mean,
        sqrt(within_square) as run_sd,
        sqrt(engine_variance) as engine_sd,
        sqrt(run_variance) as total_sd,
        internal.t_quantile(degrees) * sqrt(2 * run_variance) as noise_floor
    from split_variance
)

select * from find_floors;

comment on view internal.noise is 'One row per configuration × environment × metric: how much equal runs differ on this machine, from the newest benchmark with five or more of them (noise_run). `assayline noise` measures it.';
comment on column internal.noise.config_id is 'The configuration; see runs.config_id.';
comment on column internal.noise.environment is 'Machine, versions and prompts; see run_conditions.';
comment on column internal.noise.benchmark_id is 'The benchmark.';
comment on column internal.noise.metric is 'The metric, as in run_metric.';
comment on column internal.noise.unit is 'Its unit.';
comment on column internal.noise.runs is 'Runs with a value.';
comment on column internal.noise.engines is 'Engines that they used.';
comment on column internal.noise.mean is 'Mean over the runs.';
comment on column internal.noise.run_sd is 'Standard deviation of runs on one engine. NULL if no engine had two runs.';
comment on column internal.noise.engine_sd is 'Standard deviation that a fresh engine adds: 0 if runs on different engines differ no more than runs on one. NULL if no engine had two runs, or there was one engine.';
comment on column internal.noise.total_sd is 'Standard deviation of a run on a fresh engine: sqrt(run_sd² + engine_sd²), or over all runs if no engine had two. NULL if there was one engine.';
comment on column internal.noise.noise_floor is 'Difference that two runs on fresh engines exceed in 5% of equal pairs: t × sqrt(2) × total_sd, t the 97.5% quantile with these degrees of freedom. NULL if total_sd is.';
