-- Grain: one row per run of an open-loop load.
--
-- A queue that is stable wanders and comes back; one that is offered more than it can serve grows by the difference,
-- second after second. The interval is cut into ten slices of equal length, and in each the change of the number in
-- flight is counted (sent − finished). Saturated is a run whose mean change is above 0 by Student's t (97.5%), and
-- whose growth is more than 2% of what was sent.
--
-- False alarms: the worst queue that is not saturated is offered just what it can serve. Its number in flight is a
-- random walk that does not go below 0: its changes are all but independent, with a mean close to 0, and so some 2.5 to
-- 7% of such runs are called saturated. A queue with anything to spare comes back, so that its changes cancel: at 90%
-- of what can be served it is at most 2%, and mostly none (tests simulate it). A slight overload shows only in
-- long runs: with a thousand requests 10% is found about every other time, and 25% nearly always.
--
-- At first an engine fills up, which is growth too and no saturation: what is judged begins when the ten requests that
-- were sent first are finished.
create or replace view internal.saturation as
with

-- Not materialized: a filter on run_id must reach every use of the step.
select_sent as not materialized (
    select
        stg_requests.run_id,
        stg_requests.worker,
        stg_requests.engine_generation,
        due_at_s,
        sent_at_s,
        finished_at_s,
        begins_at_s,
        ends_at_s,
        stretch_s
    from raw.loads
    join load_stretch on load_stretch.run_id = loads.run_id
    join stg_requests
        on stg_requests.run_id = load_stretch.run_id
        and stg_requests.worker = load_stretch.worker
        and stg_requests.engine_generation = load_stretch.engine_generation
    where loads.arrival <> 'concurrency' and sent_at_s < finished_at_s
),

-- Rates of sending are gaps per second: n requests at equal distances have n − 1 of them.
measure_engines as (
    select
        run_id,
        worker,
        engine_generation,
        any_value(stretch_s) as stretch_s,
        count(*) filter (sent_at_s between begins_at_s and ends_at_s) as sent_requests,
        count(*) filter (finished_at_s between begins_at_s and ends_at_s) as finished_requests,
        max(due_at_s) filter (sent_at_s between begins_at_s and ends_at_s)
            - min(due_at_s) filter (sent_at_s between begins_at_s and ends_at_s) as due_span_s,
        greatest(any_value(begins_at_s), list_max(arg_min(finished_at_s, sent_at_s, 10))) as judged_from_s,
        any_value(ends_at_s) as judged_until_s
    from select_sent
    group by run_id, worker, engine_generation
),

add_rates as (
    select
        run_id,
        sum(sent_requests - 1) filter (due_span_s > 0) / sum(due_span_s) filter (due_span_s > 0)
            as offered_requests_per_s,
        sum(finished_requests) filter (stretch_s > 0) / sum(stretch_s) as finished_requests_per_s
    from measure_engines
    group by run_id
),

cut_slices as (
    select
        run_id,
        worker,
        engine_generation,
        judged_from_s,
        judged_until_s,
        judged_until_s - judged_from_s as judged_s,
        judged_s / 10 as slice_s
    from measure_engines
    where judged_until_s > judged_from_s and due_span_s > 0
),

mark_changes as (
    select run_id, worker, engine_generation, sent_at_s as at_s, 1 as change_requests from select_sent
    union all
    select run_id, worker, engine_generation, finished_at_s, -1 from select_sent
),

add_changes as (
    select
        cut_slices.run_id,
        cut_slices.worker,
        cut_slices.engine_generation,
        least(9, floor((at_s - judged_from_s) / slice_s)) as position,
        count(*) filter (change_requests = 1) as sent_requests,
        sum(change_requests) as change_requests
    from mark_changes
    join cut_slices
        on cut_slices.run_id = mark_changes.run_id
        and cut_slices.worker = mark_changes.worker
        and cut_slices.engine_generation = mark_changes.engine_generation
    where at_s between judged_from_s and judged_until_s
    group by all
),

add_slices as (
    select
        run_id,
        sum(sent_requests) as judged_requests,
        sum(change_requests) as growth_requests,
        sum(change_requests ** 2) as squares
    from add_changes
    group by run_id
),

-- The slope of the regression line through the number in flight at every moment. Each request adds 1 to it from its
-- sending to its end, so that the integrals of the least squares are sums over requests.
fit_slopes as (
    select
        cut_slices.run_id,
        cut_slices.worker,
        cut_slices.engine_generation,
        any_value(judged_s) as judged_s,
        sum(
            (least(finished_at_s, judged_until_s) - (judged_from_s + judged_until_s) / 2) ** 2
            - (greatest(sent_at_s, judged_from_s) - (judged_from_s + judged_until_s) / 2) ** 2
        ) / 2 as moment
    from select_sent
    join cut_slices
        on cut_slices.run_id = select_sent.run_id
        and cut_slices.worker = select_sent.worker
        and cut_slices.engine_generation = select_sent.engine_generation
    where finished_at_s > judged_from_s and sent_at_s < judged_until_s
    group by all
),

pool_slopes as (
    select
        run_id,
        count(*) * 10 as slices,
        sum(judged_s) as judged_s,
        sum(moment) / sum(judged_s ** 3 / 12) as in_flight_growth_per_s
    from fit_slopes
    group by run_id
),

find_stopped as (
    select distinct run_id
    from raw.engine_events
    where event = 'load_ended' and (details_json ->> '$.reason') = 'saturated'
),

judge_runs as (
    select
        loads.run_id,
        loads.arrival,
        add_rates.offered_requests_per_s,
        add_rates.finished_requests_per_s,
        pool_slopes.judged_s,
        cast(coalesce(add_slices.judged_requests, 0) as bigint) as judged_requests,
        pool_slopes.in_flight_growth_per_s,
        growth_requests / slices as mean_change,
        (squares - slices * mean_change ** 2) / (slices - 1) as variance,
        case
            when find_stopped.run_id is not null then true
            when judged_requests >= 50 and loads.arrival <> 'all_at_once'
            then growth_requests > 0.02 * judged_requests
                and mean_change ** 2 * slices > internal.t_quantile(slices - 1) ** 2 * variance
        end as is_saturated
    from raw.loads
    left join add_rates on add_rates.run_id = loads.run_id
    left join add_slices on add_slices.run_id = loads.run_id
    left join pool_slopes on pool_slopes.run_id = loads.run_id
    left join find_stopped on find_stopped.run_id = loads.run_id
    where loads.arrival <> 'concurrency'
),

drop_parts as (
    select * exclude (mean_change, variance)
    from judge_runs
)

select * from drop_parts;

comment on view internal.saturation is 'One row per run of an open-loop load: whether the engine was offered more than it can serve, so that requests in flight accumulate. Latencies of such a run depend on its duration more than on the engine. Computed over the measured interval (load_stretch), from results and errors.';
comment on column internal.saturation.run_id is 'The run.';
comment on column internal.saturation.arrival is 'The arrival pattern, as in loads.';
comment on column internal.saturation.offered_requests_per_s is 'Requests per second that were to be sent: (n − 1) / seconds from the first due_at_s to the last, of the n requests sent in the interval. NULL if all are due at once, as in all_at_once.';
comment on column internal.saturation.finished_requests_per_s is 'Requests per second that finished: those with finished_at_s in the interval / its seconds.';
comment on column internal.saturation.judged_s is 'Seconds over which the number in flight is judged: the interval without its beginning, until the ten requests that were sent first had finished. Summed over engines. NULL if nothing is left, like the slope.';
comment on column internal.saturation.judged_requests is 'Requests sent in them.';
comment on column internal.saturation.in_flight_growth_per_s is 'By how many requests a second the number in flight grew: slope of the least-squares line through the exact number at every moment of judged_s. About 0 for a load that is served, offered − finished rate for one that is not.';
comment on column internal.saturation.is_saturated is 'Whether the growth is beyond chance: with judged_s cut into ten slices per engine, mean change of the number in flight per slice > t × its standard error (t: 97.5% quantile of Student, slices − 1 degrees of freedom), and total growth > 2% of judged_requests; or the load was ended for it (stop_when_saturated), too early for that. False: no such growth was seen. NULL for fewer than 50 judged_requests and for all_at_once, for which it is unknown.';
