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
),

cut_ends as (
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
    from span_sending
)

select * from cut_ends;

comment on view internal.load_stretch is 'One row per run × worker × engine generation, of runs with a load: the interval of its sending that is measured, between the warm-up and the cool-down window. Each engine has windows of its own, as each begins with nothing in flight.';
comment on column internal.load_stretch.worker is 'The worker that owned the engine.';
comment on column internal.load_stretch.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column internal.load_stretch.has_windows is 'Whether throughput is of what finished in this interval: if warmup_s or cooldown_s of loads is above 0, and of a closed loop, whose last requests finish while fewer and fewer are in flight, if half of the requests finished before the last one was sent. If not, all that was sent is measured, and throughput is over the seconds at work.';
comment on column internal.load_stretch.first_sent_at_s is 'When the first request was sent to it, in seconds since the run''s start. NULL if no request was sent, like all columns below. Requests that a crashed engine lost are not counted: they are sent again.';
comment on column internal.load_stretch.last_sent_at_s is 'When the last request was sent to it, in seconds since the run''s start.';
comment on column internal.load_stretch.begins_at_s is 'Where the measured interval begins (included): first_sent_at_s + loads.warmup_s. Seconds since the run''s start.';
comment on column internal.load_stretch.ends_at_s is 'Where it ends (included): last_sent_at_s − loads.cooldown_s. Before begins_at_s if the windows leave nothing. Seconds since the run''s start.';
comment on column internal.load_stretch.stretch_s is 'Its length, seconds: ends_at_s − begins_at_s. NULL if the windows leave nothing.';
