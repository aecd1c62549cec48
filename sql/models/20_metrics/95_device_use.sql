-- Grain: one row per run × worker × device.
create or replace view internal.device_use as
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

select * from describe_devices;

comment on view internal.device_use is 'One row per run × worker × device: how busy, how full, how hot and how hungry it was over all of its samples, loading included.';
comment on column internal.device_use.worker is 'The worker that held it.';
comment on column internal.device_use.device is 'A GPU, as cuda-0, or host, the worker''s machine.';
comment on column internal.device_use.samples is 'Its samples in device_telemetry.';
comment on column internal.device_use.first_at_s is 'The first of them, in seconds since the run''s start.';
comment on column internal.device_use.mean_utilization_share is 'Mean utilization over samples, 0 to 1; see device_telemetry.utilization_share. NULL if no sample has it, like all columns below.';
comment on column internal.device_use.max_memory_used_bytes is 'The most memory in use, by whomever, bytes.';
comment on column internal.device_use.memory_total_bytes is 'Memory that there is, bytes.';
comment on column internal.device_use.mean_power_watts is 'Mean power, watts: energy_joules / energy_known_s.';
comment on column internal.device_use.max_power_watts is 'The highest power of a sample, watts.';
comment on column internal.device_use.max_temperature_c is 'The highest temperature, degrees Celsius.';
comment on column internal.device_use.throttled_share is 'Share of samples in which something held its clocks back, other than having nothing to do, 0 to 1.';
comment on column internal.device_use.throttle_reasons is 'Reasons of throttling, comma-separated, as in device_telemetry. NULL if it was not throttled.';
comment on column internal.device_use.energy_joules is 'Energy over its samples, joules: sum of energy_stretch.stretch_joules. NULL without a sensor.';
comment on column internal.device_use.energy_error_joules is 'Bound of the integral''s error, joules: sum of energy_stretch.error_joules. NULL if all is counted.';
comment on column internal.device_use.energy_known_s is 'Seconds over which that is. Gaps of more than 10 s between samples are left out unless a counter bridges them; see energy_stretch.';
comment on column internal.device_use.energy_source is 'counter: the device''s energy counter alone; power: integrated power, at least in part. NULL without a sensor.';
