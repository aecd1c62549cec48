-- Grain: one row per run × worker × engine generation, of runs with a load.
-- Made of completions, as stg_requests is made of it: a second answer to a request was sent all the same.
create or replace view internal.load_stretch as
with

-- Seats of a closed loop that are taken, after each sending and finish.
take_seats as (
    select
        run_id,
        worker,
        engine_generation,
        unnest([sent_at_s, finished_at_s]) as at_s,
        unnest([1, -1]) as change,
        max(window_requests) over (partition by run_id, worker, engine_generation) as seats
    from raw.completions
    where worker <> 'prepare'
        and sent_at_s < finished_at_s
        and run_id in (select run_id from raw.loads where arrival = 'concurrency')
),

count_seats as (
    select
        *,
        sum(change) over (partition by run_id, worker, engine_generation order by at_s, change) as taken
    from take_seats
),

fill_seats as (
    select run_id, worker, engine_generation, min(at_s) filter (taken >= seats) as full_at_s
    from count_seats
    group by run_id, worker, engine_generation
),

span_sending as (
    select
        completions.run_id,
        completions.worker,
        completions.engine_generation,
        any_value(loads.arrival) = 'concurrency'
            and median(completions.finished_at_s) <= max(completions.sent_at_s) as has_drain,
        max(loads.warmup_s) as warmup_s,
        max(loads.cooldown_s) as cooldown_s,
        min(completions.sent_at_s) as first_sent_at_s,
        max(completions.sent_at_s) as last_sent_at_s
    from raw.loads
    join raw.completions on completions.run_id = loads.run_id
    where completions.worker <> 'prepare'
    group by completions.run_id, completions.worker, completions.engine_generation
)

select
    run_id,
    worker,
    engine_generation,
    warmup_s + cooldown_s > 0 or coalesce(has_drain, false) as has_windows,
    first_sent_at_s,
    last_sent_at_s,
    first_sent_at_s + warmup_s as begins_at_s,
    last_sent_at_s - cooldown_s as ends_at_s,
    case when has_drain then greatest(begins_at_s, fill_seats.full_at_s) else begins_at_s end as steady_from_s,
    case when ends_at_s > begins_at_s then ends_at_s - begins_at_s end as stretch_s
from span_sending
left join fill_seats using (run_id, worker, engine_generation);

comment on view internal.load_stretch is 'One row per run × worker × engine generation, of runs with a load: the interval of its sending that is measured, between the warm-up and the cool-down window. Each engine has windows of its own, as each begins with nothing in flight.';
comment on column internal.load_stretch.steady_from_s is 'Beginning of the seconds that rates are of: begins_at_s, or in a closed loop the time at which every seat of the engine was taken. It ends when a seat stays empty, after last_sent_at_s.';
