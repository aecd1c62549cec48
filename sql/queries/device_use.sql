-- Grain: one row per worker × device of a run.
with energy as (
    select
        worker,
        device,
        sum(stretch_joules) as energy_joules,
        sum(error_joules) as energy_error_joules,
        sum(ends_at_s - begins_at_s) as energy_known_s,
        case when bool_and(source = 'counter') then 'counter' else 'power' end as source
    from energy_stretch
    where run_id = getvariable('run_id')
    group by worker, device
)

select
    worker,
    device,
    count(*) as samples,
    min(at_s) as first_at_s,
    avg(utilization_share) as mean_utilization_share,
    max(memory_used_bytes) as max_memory_used_bytes,
    max(memory_total_bytes) as memory_total_bytes,
    any_value(energy.energy_joules) / nullif(any_value(energy_known_s), 0) as mean_power_watts,
    max(power_watts) as max_power_watts,
    max(temperature_c) as max_temperature_c,
    count(*) filter (throttle_reasons not in ('', 'gpu_idle')) / nullif(count(throttle_reasons), 0) as throttled_share,
    nullif(array_to_string(list_sort(list_distinct(flatten(list(
        list_filter(string_split(throttle_reasons, ','), lambda reason: reason not in ('', 'gpu_idle'))
    )))), ', '), '') as throttle_reasons,
    any_value(energy.energy_joules) as energy_joules,
    any_value(energy_error_joules) as energy_error_joules,
    any_value(energy_known_s) as energy_known_s,
    case when any_value(energy.energy_joules) is not null then any_value(source) end as energy_source
from raw.device_telemetry
left join energy using (worker, device)
where run_id = getvariable('run_id')
group by worker, device
order by worker, device;
