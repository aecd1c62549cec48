-- Grain: one row per run of a noise measurement: the newest benchmark with five or more runs of a configuration in an
-- environment.
create or replace view internal.noise_run as
with

read_engines as (
    select run_id, any_value(details_json ->> '$.kept_from') as first_run_id
    from raw.engine_events
    where event = 'opened'
    group by run_id
),

-- A spec without warm-up is measured as it is.
count_runs as (
    select
        run_conditions.config_id,
        run_conditions.environment,
        run_conditions.benchmark_id,
        run_conditions.run_id,
        coalesce(read_engines.first_run_id, run_conditions.run_id) as engine_run_id,
        count(*) over measurements as runs,
        max(run_conditions.started_at) over measurements as last_started_at
    from internal.run_conditions
    left join read_engines on read_engines.run_id = run_conditions.run_id
    where run_conditions.benchmark_id is not null
        and coalesce(obstacle, '') in ('', 'its engine was not warmed up')
    window measurements as (
        partition by run_conditions.config_id, run_conditions.environment, run_conditions.benchmark_id
    )
)

select config_id, environment, benchmark_id, run_id, engine_run_id
from count_runs
where runs >= 5
qualify dense_rank() over (
    partition by config_id, environment
    order by last_started_at desc, benchmark_id desc
) = 1;

comment on view internal.noise_run is 'One row per run of a noise measurement: the newest benchmark with five or more runs of a configuration in an environment. Runs with an obstacle in run_conditions do not count, except for a missing warm-up.';
