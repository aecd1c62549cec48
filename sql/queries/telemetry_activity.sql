-- Grain: one row per run × slice of activity.
with

list_slices as not materialized (
    select run_id, begins_at_s, ends_at_s from activity
),

-- Each GPU's mean first, so that one with more samples in a slice does not count for more.
average_devices as (
    select
        list_slices.run_id,
        list_slices.begins_at_s,
        device_telemetry.worker,
        device_telemetry.device,
        avg(power_watts) as power_watts
    from list_slices
    join raw.device_telemetry
        on device_telemetry.run_id = list_slices.run_id
        and device_telemetry.at_s >= list_slices.begins_at_s
        and device_telemetry.at_s < list_slices.ends_at_s
    group by all
),

add_devices as (
    select
        run_id,
        begins_at_s,
        sum(power_watts) as power_watts
    from average_devices
    group by run_id, begins_at_s
),

average_engines as (
    select
        list_slices.run_id,
        list_slices.begins_at_s,
        avg(kv_cache_usage_share) as kv_cache_usage_share
    from list_slices
    join raw.telemetry
        on telemetry.run_id = list_slices.run_id
        and telemetry.at_s >= list_slices.begins_at_s
        and telemetry.at_s < list_slices.ends_at_s
    group by list_slices.run_id, list_slices.begins_at_s
),

fill_slices as (
    select
        list_slices.run_id,
        list_slices.begins_at_s,
        list_slices.ends_at_s,
        add_devices.power_watts,
        average_engines.kv_cache_usage_share
    from list_slices
    left join add_devices
        on add_devices.run_id = list_slices.run_id and add_devices.begins_at_s = list_slices.begins_at_s
    left join average_engines
        on average_engines.run_id = list_slices.run_id and average_engines.begins_at_s = list_slices.begins_at_s
)

select * from fill_slices
where run_id = getvariable('run_id')
order by begins_at_s;
