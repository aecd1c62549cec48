-- Grain: one row per run × worker × device.
with

add_samples as (
    select
        run_id,
        worker,
        device,
        count(*) as samples,
        min(at_s) as first_at_s,
        avg(utilization_share) as mean_utilization_share,
        max(memory_used_bytes) as max_memory_used_bytes,
        max(memory_total_bytes) as memory_total_bytes,
        max(power_watts) as max_power_watts,
        max(temperature_c) as max_temperature_c,
        count(*) filter (throttle_reasons not in ('', 'gpu_idle')) as throttled_samples,
        count(throttle_reasons) as throttle_samples
    from raw.device_telemetry
    group by run_id, worker, device
),

add_energy as (
    select
        run_id,
        worker,
        device,
        sum(stretch_joules) as energy_joules,
        sum(error_joules) as energy_error_joules,
        sum(ends_at_s - begins_at_s) as energy_known_s,
        bool_and(source = 'counter') as is_counted
    from energy_stretch
    group by run_id, worker, device
),

list_reasons as (
    select run_id, worker, device, list_sort(list(distinct reason)) as reasons
    from (
        select run_id, worker, device, unnest(string_split(throttle_reasons, ',')) as reason
        from raw.device_telemetry
        where throttle_reasons <> ''
    )
    where reason <> 'gpu_idle'
    group by run_id, worker, device
),

describe_devices as (
    select
        add_samples.run_id,
        add_samples.worker,
        add_samples.device,
        samples,
        first_at_s,
        mean_utilization_share,
        max_memory_used_bytes,
        memory_total_bytes,
        energy_joules / nullif(energy_known_s, 0) as mean_power_watts,
        max_power_watts,
        max_temperature_c,
        throttled_samples / nullif(throttle_samples, 0) as throttled_share,
        array_to_string(reasons, ', ') as throttle_reasons,
        energy_joules,
        energy_error_joules,
        energy_known_s,
        case
            when energy_joules is null then null
            when is_counted then 'counter'
            else 'power'
        end as energy_source
    from add_samples
    left join add_energy
        on add_energy.run_id = add_samples.run_id
        and add_energy.worker = add_samples.worker
        and add_energy.device = add_samples.device
    left join list_reasons
        on list_reasons.run_id = add_samples.run_id
        and list_reasons.worker = add_samples.worker
        and list_reasons.device = add_samples.device
)

select * from describe_devices
where run_id = getvariable('run_id')
order by worker, device;
