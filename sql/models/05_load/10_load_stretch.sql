-- Grain: one row per run × worker × engine generation, of runs with a load.
-- Made of completions, as stg_requests is made of it: a second answer to a request was sent all the same.
create or replace view internal.load_stretch as
with

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
    case when ends_at_s > begins_at_s then ends_at_s - begins_at_s end as stretch_s
from span_sending;

comment on view internal.load_stretch is 'One row per run × worker × engine generation, of runs with a load: the interval of its sending that is measured, between the warm-up and the cool-down window. Each engine has windows of its own, as each begins with nothing in flight.';
