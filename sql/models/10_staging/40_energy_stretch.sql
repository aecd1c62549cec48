-- Grain: one row per run × worker × device × two samples in a row that tell of its energy.
--
-- The device's own counter tells the energy between two samples where there is one. Otherwise power is integrated by
-- the trapezoidal rule. If power stays between its values at the two ends, the true integral lies between the two
-- rectangles, so the rule errs by at most half their difference: |p2 − p1| / 2 × seconds. NVML calls its reading
-- accurate to within 5 % of the power (nvmlDeviceGetPowerUsage, of Fermi and Kepler), which is added. What a sensor
-- leaves out between its own samples (Yang et al. 2024, "Accurate and Convenient Energy Measurements for GPUs") is in
-- neither.
--
-- Samples that are further apart than 10 s are of two attempts, or something held the sampling up: what happened
-- between them is not known.
create or replace view energy_stretch as
with

pair_samples as (
    select
        run_id,
        worker,
        device,
        at_s as begins_at_s,
        lead(at_s) over samples as ends_at_s,
        ends_at_s - at_s as stretch_s,
        lead(energy_joules) over samples - energy_joules as counted_joules,
        power_watts,
        lead(power_watts) over samples as next_power_watts
    from device_telemetry
    window samples as (partition by run_id, worker, device order by at_s)
),

-- A counter that goes back was begun anew, with its driver.
measure_stretches as (
    select
        run_id,
        worker,
        device,
        begins_at_s,
        ends_at_s,
        case when counted_joules >= 0 then 'counter' else 'power' end as source,
        case
            when counted_joules >= 0 then counted_joules
            else (power_watts + next_power_watts) / 2 * stretch_s
        end as stretch_joules,
        case
            when counted_joules >= 0 then null
            else (abs(next_power_watts - power_watts) / 2 + 0.05 * (power_watts + next_power_watts) / 2) * stretch_s
        end as error_joules
    from pair_samples
    where stretch_s > 0 and stretch_s <= 10
),

keep_known as (
    select * from measure_stretches where stretch_joules is not null
)

select * from keep_known;

comment on view energy_stretch is 'One row per run × worker × device × two samples in a row that tell of its energy: what the device used between them. A device without a sensor, such as host, has none.';
comment on column energy_stretch.run_id is 'The run.';
comment on column energy_stretch.worker is 'The worker that held the device.';
comment on column energy_stretch.device is 'The device, as in device_telemetry.';
comment on column energy_stretch.begins_at_s is 'The first sample, in seconds since the run''s start.';
comment on column energy_stretch.ends_at_s is 'The next one, at most 10 s later.';
comment on column energy_stretch.source is 'counter: the device''s energy counter; power: the integral of its power, where it has no counter or that was begun anew.';
comment on column energy_stretch.stretch_joules is 'Energy between the two, joules: the counter''s difference, else (p1 + p2) / 2 × seconds.';
comment on column energy_stretch.error_joules is 'Bound of the integral''s error, joules, if power stayed between its values at the two ends: (|p2 − p1| / 2 + 5 % of the mean power) × seconds. NULL for the counter.';
