-- Grain: one row per run with samples of a GPU.
-- Energy is of the same window as throughput: the seconds of run_summary.working_s, and of measured_s. A GPU counts for
-- as long as its worker had work there. One without a sensor makes the run's energy unknown, and so does one of whose
-- seconds at work more than 5% are. Up to 5% are filled with the mean power of the other seconds of the same GPU and
-- window, and what is filled in is added to the error in full.
create or replace view internal.run_energy as
with

select_gpus as (
    select run_id, worker, device, energy_joules, energy_error_joules, energy_source
    from device_use
    where device <> 'host'
),

select_work as (
    select run_id, worker, work_began_at_s, work_ended_at_s
    from engine_history
    where work_ended_at_s is not null
),

-- The union of all engines' work: an interval of it begins where every earlier one has ended.
mark_beginnings as (
    select
        *,
        coalesce(work_began_at_s > max(work_ended_at_s) over (
            partition by run_id
            order by work_began_at_s
            rows between unbounded preceding and 1 preceding
        ), true) as is_beginning
    from select_work
),

number_windows as (
    select
        *,
        count(*) filter (is_beginning) over (
            partition by run_id
            order by work_began_at_s
            rows between unbounded preceding and current row
        ) as position
    from mark_beginnings
),

list_windows as (
    select run_id, 'working' as span, min(work_began_at_s) as from_s, max(work_ended_at_s) as until_s
    from number_windows
    group by run_id, position
    union all
    select run_id, 'between windows', begins_at_s, ends_at_s
    from load_stretch
    where has_windows and stretch_s is not null
),

span_workers as (
    select run_id, worker, min(work_began_at_s) as from_s, max(work_ended_at_s) as until_s
    from select_work
    group by run_id, worker
),

add_held as (
    select
        select_gpus.run_id,
        select_gpus.worker,
        select_gpus.device,
        list_windows.span,
        sum(greatest(
            0, least(list_windows.until_s, span_workers.until_s) - greatest(list_windows.from_s, span_workers.from_s)
        )) as held_s
    from select_gpus
    join span_workers on span_workers.run_id = select_gpus.run_id and span_workers.worker = select_gpus.worker
    join list_windows on list_windows.run_id = select_gpus.run_id
    group by all
),

-- The energy between two samples is spread evenly over the time between them.
cut_stretches as (
    select
        energy_stretch.run_id,
        energy_stretch.worker,
        device,
        span,
        ends_at_s - begins_at_s as whole_s,
        least(ends_at_s, list_windows.until_s, span_workers.until_s)
            - greatest(begins_at_s, list_windows.from_s, span_workers.from_s) as cut_s,
        stretch_joules * cut_s / whole_s as cut_joules,
        error_joules * cut_s / whole_s as cut_error_joules
    from energy_stretch
    join span_workers on span_workers.run_id = energy_stretch.run_id and span_workers.worker = energy_stretch.worker
    join list_windows on list_windows.run_id = energy_stretch.run_id
    where cut_s > 0
),

add_stretches as (
    select
        run_id,
        worker,
        device,
        span,
        sum(cut_s) as known_s,
        sum(cut_joules) as known_joules,
        sum(cut_error_joules) as known_error_joules
    from cut_stretches
    group by all
),

-- missing_joules: NULL if nothing is missing, apart from rounding.
fill_gaps as (
    select
        add_held.run_id,
        add_held.span,
        known_joules,
        coalesce(known_s, 0) / nullif(held_s, 0) as known_share,
        case when known_share < 1 - 1e-9 then known_joules * (1 / nullif(known_share, 0) - 1) end as missing_joules,
        known_error_joules
    from add_held
    left join add_stretches using (run_id, worker, device, span)
),

add_spans as (
    select
        run_id,
        sum(known_joules) filter (span = 'working') as known_working_joules,
        sum(missing_joules) filter (span = 'working') as missing_working_joules,
        sum(known_error_joules) filter (span = 'working') as known_working_error_joules,
        min(known_share) filter (span = 'working') as working_known_share,
        known_working_joules + coalesce(missing_working_joules, 0) as working_joules,
        coalesce(
            known_working_error_joules + missing_working_joules, known_working_error_joules, missing_working_joules
        ) as working_error_joules,
        sum(known_joules) filter (span = 'between windows') as known_between_joules,
        sum(missing_joules) filter (span = 'between windows') as missing_between_joules,
        sum(known_error_joules) filter (span = 'between windows') as known_between_error_joules,
        min(known_share) filter (span = 'between windows') as between_known_share,
        known_between_joules + coalesce(missing_between_joules, 0) as between_joules,
        coalesce(
            known_between_error_joules + missing_between_joules, known_between_error_joules, missing_between_joules
        ) as between_error_joules
    from fill_gaps
    group by run_id
),

add_gpus as (
    select
        run_id,
        count(*) as gpus,
        case when count(energy_joules) = count(*) then sum(energy_joules) end as all_joules,
        sum(energy_error_joules) as all_error_joules,
        case
            when count(energy_joules) < count(*) then null
            when bool_and(energy_source = 'counter') then 'counter'
            else 'power'
        end as energy_source
    from select_gpus
    group by run_id
),

find_windows as (
    select run_id, bool_or(has_windows) as has_windows
    from load_stretch
    group by run_id
),

choose_known as (
    select
        add_gpus.run_id,
        gpus,
        energy_source,
        case when energy_source is not null then working_known_share end as known_share,
        case when known_share >= 0.95 then all_joules + coalesce(missing_working_joules, 0) end as energy_joules,
        case
            when known_share >= 0.95
                then coalesce(all_error_joules + missing_working_joules, all_error_joules, missing_working_joules)
        end as energy_error_joules,
        case when known_share >= 0.95 then working_joules end as working_joules,
        case when known_share >= 0.95 then all_joules - known_working_joules end as idle_joules,
        case
            when coalesce(has_windows, false) then case when between_known_share >= 0.95 then between_joules end
            when known_share >= 0.95 then working_joules
        end as measured_joules,
        case
            when measured_joules is null then null
            when has_windows then between_error_joules
            else working_error_joules
        end as measured_error_joules
    from add_gpus
    left join add_spans on add_spans.run_id = add_gpus.run_id
    left join find_windows on find_windows.run_id = add_gpus.run_id
)

select * from choose_known;

comment on view internal.run_energy is 'One row per run with samples of a GPU: the energy of its GPUs, in total and over the interval of throughput. Only GPUs count: processors, memory, fans and cooling, which a wall meter includes, do not.';
comment on column internal.run_energy.run_id is 'The run.';
comment on column internal.run_energy.gpus is 'GPUs, or MIG slices, that its workers held.';
comment on column internal.run_energy.energy_source is 'counter: the energy counters of all of them; power: integrated power, of some at least. NULL if a run has neither, like all columns below.';
comment on column internal.run_energy.known_share is 'Share of the seconds at work of which the energy is known, 0 to 1, of the GPU with the least. Below 0.95, what follows is NULL.';
comment on column internal.run_energy.energy_joules is 'Energy of all GPUs, joules: from the claim of each to its return, loading, warm-up and rebuilding included; the time between two attempts is not. Seconds at work that no samples cover count with the mean power of the others, as in working_joules; other gaps count as nothing.';
comment on column internal.run_energy.energy_error_joules is 'Bound of its error, joules: as far as power was integrated, energy_stretch.error_joules; and the energy that was filled in for seconds that no samples cover. NULL if all of it was counted.';
comment on column internal.run_energy.working_joules is 'The part of it at work, joules: over the seconds of run_summary.working_s, of each GPU from the first to the last of them in which its own worker had work. Per GPU: known energy / its share of seconds with known energy.';
comment on column internal.run_energy.idle_joules is 'The rest, joules: energy_joules − working_joules. GPUs that load, warm up, wait while every engine is rebuilt, or are about to be given back.';
comment on column internal.run_energy.measured_joules is 'The part over the seconds that throughput is divided by (run_summary.measured_s), joules: working_joules, or between a load''s windows.';
comment on column internal.run_energy.measured_error_joules is 'Bound of its error, joules, likewise.';
