-- Grain: one row per run × worker × device × pair of consecutive samples from which its energy follows.
--
-- If the device has an energy counter, the counter gives the energy between two samples. Otherwise power is
-- integrated by
-- the trapezoidal rule. If power stays between its values at the two ends, the true integral lies between the two
-- rectangles, so the rule errs by at most half their difference: |p2 − p1| / 2 × seconds. NVML calls its reading
-- accurate to within 5% of the power (nvmlDeviceGetPowerUsage, of Fermi and Kepler), which is added. Neither includes
-- what a sensor misses between its own samples (Yang et al. 2024, "Accurate and Convenient Energy Measurements for
-- GPUs").
--
-- If samples are further apart than 10 s, something held the sampling up, or they are of two attempts. In the first
-- case a counter has all of the energy, and power is not known. Between two attempts the device was not the run's.
create or replace view internal.energy_stretch as
with

find_last_samples as (
    select run_id, worker, engine_generation, max(at_s) as last_sample_at_s
    from raw.telemetry
    group by run_id, worker, engine_generation
),

span_attempts as (
    select
        run_id,
        worker,
        attempt,
        min(at_s - case when event = 'opened' then coalesce(duration_s, 0) else 0 end) as began_at_s,
        max(greatest(at_s, last_sample_at_s)) as ended_at_s
    from raw.engine_events
    left join find_last_samples using (run_id, worker, engine_generation)
    where event not in ('load_ended', 'idle')
    group by run_id, worker, attempt
),

-- From the last sign of a worker's engine in one attempt to the first of the next.
find_pauses as (
    select
        run_id,
        worker,
        lag(ended_at_s) over (partition by run_id, worker order by attempt) as pause_began_at_s,
        began_at_s as pause_ended_at_s
    from span_attempts
),

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
    from raw.device_telemetry
    window samples as (partition by run_id, worker, device order by at_s)
),

-- A gap that touches a pause is not known, whatever the counter says: part of it is not of the run.
leave_out_pauses as (
    select pair_samples.*
    from pair_samples
    anti join find_pauses
        on find_pauses.run_id = pair_samples.run_id
        and find_pauses.worker = pair_samples.worker
        and pair_samples.begins_at_s < find_pauses.pause_ended_at_s
        and pair_samples.ends_at_s > find_pauses.pause_began_at_s
        and pair_samples.stretch_s > 10
),

-- A counter that goes back has begun again, with its driver.
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
    from leave_out_pauses
    where stretch_s > 0 and (stretch_s <= 10 or counted_joules >= 0)
)

select * from measure_stretches where stretch_joules is not null;

comment on view internal.energy_stretch is 'One row per run × worker × device × pair of consecutive samples with energy: the energy that the device used between them. A device without a sensor, such as host, has none.';
