-- Grain: one row per sample of a device's sensors, about one a second.
create table if not exists raw.device_telemetry (
    run_id varchar not null,
    worker varchar not null,
    device varchar not null,
    at_s double not null,
    utilization_share double,
    memory_used_bytes bigint,
    memory_total_bytes bigint,
    power_watts double,
    energy_joules double,
    temperature_c integer,
    sm_clock_mhz integer,
    memory_clock_mhz integer,
    throttle_reasons varchar
);

comment on table raw.device_telemetry is 'One row per sample of a device''s sensors, about one per second from when a worker claims its device until it releases it, loading and rebuilding included. Values without a sensor are NULL.';
comment on column raw.device_telemetry.worker is 'The worker that holds the device.';
comment on column raw.device_telemetry.device is 'A GPU as in CUDA_VISIBLE_DEVICES, with cuda- before it; or host, the machine that the worker is on.';
comment on column raw.device_telemetry.at_s is 'When the sample was taken, in seconds since the run''s start.';
comment on column raw.device_telemetry.utilization_share is 'GPU: share of the last sample period (1/6 s to 1 s, by the product) in which a kernel ran, regardless of how much of the GPU the kernel used. host: share of the time since the previous sample in which its cores were busy, mean over all cores. 0 to 1.';
comment on column raw.device_telemetry.memory_used_bytes is 'Memory in use by all processes, in bytes. host: total minus available.';
comment on column raw.device_telemetry.memory_total_bytes is 'Total memory, in bytes.';
comment on column raw.device_telemetry.power_watts is 'Power of the GPU''s board from its sensor, watts: the mean of the last second, on GA100 and before Ampere the moment''s. NULL for host, and of a MIG slice, whose power is the whole GPU''s.';
comment on column raw.device_telemetry.energy_joules is 'The GPU''s energy counter, joules since its driver was loaded. NULL if it has none (before Volta, MIG slices, host).';
comment on column raw.device_telemetry.temperature_c is 'Temperature of the GPU, degrees Celsius.';
comment on column raw.device_telemetry.sm_clock_mhz is 'Clock of its streaming multiprocessors, MHz.';
comment on column raw.device_telemetry.memory_clock_mhz is 'Clock of its memory, MHz.';
comment on column raw.device_telemetry.throttle_reasons is 'Why its clocks are below the highest, comma-separated, after NVML''s ClocksEventReasons; empty if nothing holds them back.';
