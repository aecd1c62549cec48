-- Energy of GPUs: in all, and in the seconds that throughput is of. A GPU counts for as long as its worker had work.
-- The energy between two samples is spread evenly over the time between them. One without a sensor makes the run's
-- energy unknown, and so does one of whose seconds at work more than 5% are. Up to 5% are filled with the mean power of
-- its other seconds, and what is filled in is added to the error in full. Grain: one row per metric.
with workers as (
    select worker, min(work_began_at_s) as from_s, max(work_ended_at_s) as until_s
    from engine
    where run_id = getvariable('run_id') and work_ended_at_s is not null
    group by worker
),

gpus as (
    select worker, device
    from raw.device_telemetry
    where run_id = getvariable('run_id') and device <> 'host'
    group by worker, device
),

-- The seconds of a GPU in each interval of work, or between a load's windows.
held as (
    select worker, device, kind, greatest(stretch.from_s, workers.from_s) as from_s,
        least(stretch.until_s, workers.until_s) as until_s
    from gpus
    join workers using (worker)
    join stretch
        on stretch.run_id = getvariable('run_id') and kind in ('work', 'window') and stretch.from_s is not null
),

known as (
    select
        worker,
        device,
        kind,
        sum(least(ends_at_s, until_s) - greatest(begins_at_s, from_s)) as known_s,
        sum(stretch_joules * (least(ends_at_s, until_s) - greatest(begins_at_s, from_s)) / (ends_at_s - begins_at_s))
            as joules,
        sum(error_joules * (least(ends_at_s, until_s) - greatest(begins_at_s, from_s)) / (ends_at_s - begins_at_s))
            as error_joules
    from held
    join energy_stretch using (worker, device)
    where energy_stretch.run_id = getvariable('run_id') and begins_at_s < until_s and ends_at_s > from_s
    group by worker, device, kind
),

-- missing_joules: NULL if nothing is missing, apart from rounding.
filled as (
    select
        kind,
        coalesce(known_s, 0) / nullif(held_s, 0) as known_share,
        joules,
        case when known_share < 1 - 1e-9 then joules * (1 / nullif(known_share, 0) - 1) end as missing_joules,
        error_joules
    from (select worker, device, kind, sum(greatest(0, until_s - from_s)) as held_s from held group by all)
    left join known using (worker, device, kind)
),

spans as (
    select
        kind,
        min(known_share) as known_share,
        sum(joules) as joules,
        sum(missing_joules) as missing_joules,
        sum(error_joules) as error_joules
    from filled
    group by kind
),

totals as (
    select
        count(*) as gpus,
        count(joules) = count(*) as is_known,
        sum(joules) as joules,
        sum(error_joules) as error_joules
    from gpus
    left join (
        select worker, device, sum(stretch_joules) as joules, sum(error_joules) as error_joules
        from energy_stretch
        where run_id = getvariable('run_id')
        group by worker, device
    ) using (worker, device)
),

sums as (
    select
        gpus,
        totals.joules + coalesce(work.missing_joules, 0) as energy_joules,
        totals.joules - work.joules as idle_joules,
        coalesce(totals.error_joules + work.missing_joules, totals.error_joules, work.missing_joules) as error_joules,
        work.joules + coalesce(work.missing_joules, 0) as working_joules,
        has_windows,
        -- Without windows, throughput is over the seconds at work.
        case
            when not has_windows then working_joules
            when between_windows.known_share >= 0.95
                then between_windows.joules + coalesce(between_windows.missing_joules, 0)
        end as measured_joules,
        is_known and work.known_share >= 0.95 as is_enough
    from totals
    cross join (
        select count(*) filter (kind = 'window') > 0 as has_windows
        from stretch
        where run_id = getvariable('run_id')
    )
    left join spans as work on work.kind = 'work'
    left join spans as between_windows on between_windows.kind = 'window'
),

speeds as (
    select
        max(value) filter (metric = 'measured_s') as measured_s,
        max(value) filter (metric = 'requests_per_s') * measured_s as requests,
        max(value) filter (metric = 'output_tokens_per_s') * measured_s as tokens
    from metric_value
    where run_id = getvariable('run_id')
)

select unnest(metric_rows([
    ('gpus', 'total', gpus, null, 'GPUs', null),
    ('energy_joules', 'total', case when is_enough then energy_joules end, null, 'J', false),
    ('energy_error_joules', 'total', case when is_enough then error_joules end, null, 'J', false),
    ('idle_joules', 'total', case when is_enough then idle_joules end, null, 'J', false),
    ('working_joules', 'total', case when is_enough then working_joules end, null, 'J', false),
    ('mean_power_watts', 'mean', case when is_enough or has_windows then measured_joules end / nullif(measured_s, 0),
        null, 'W', false),
    ('energy_per_output_token_joules', 'mean', case when is_enough or has_windows then measured_joules end
        / nullif(tokens, 0), null, 'J/token', false),
    ('energy_per_request_joules', 'mean', case when is_enough or has_windows then measured_joules end
        / nullif(requests, 0), null, 'J/request', false),
    ('output_tokens_per_joule', 'mean', tokens
        / nullif(case when is_enough or has_windows then measured_joules end, 0), null, 'tokens/J', true)
]), recursive := true)
from sums, speeds;
