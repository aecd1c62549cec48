-- Whether an open-loop load was more than the engines can serve: a stable queue wanders and comes back, one that is
-- offered too much grows by the difference. Each engine's sending, from the end of the ten requests that were sent
-- first, is cut into ten slices, and in each the change of the number in flight is counted (sent − finished). The slope
-- is that of the least-squares line through the number in flight at every moment: each request adds 1 to it from its
-- sending to its end, so the integrals are sums over requests. Grain: one row.
with sent as (
    select worker, engine_generation, due_at_s, sent_at_s, finished_at_s, begins_at_s, ends_at_s, stretch_s
    from request
    join load_stretch using (run_id, worker, engine_generation)
    where run_id = getvariable('run_id') and sent_at_s < finished_at_s
),

-- Rates of sending are gaps per second: n requests at equal distances have n − 1 of them.
engines as (
    select
        worker,
        engine_generation,
        any_value(stretch_s) as stretch_s,
        count(*) filter (sent_at_s between begins_at_s and ends_at_s) as sent,
        count(*) filter (finished_at_s between begins_at_s and ends_at_s) as finished,
        max(due_at_s) filter (sent_at_s between begins_at_s and ends_at_s)
            - min(due_at_s) filter (sent_at_s between begins_at_s and ends_at_s) as due_span_s,
        greatest(any_value(begins_at_s), list_max(arg_min(finished_at_s, sent_at_s, 10))) as from_s,
        any_value(ends_at_s) as until_s
    from sent
    group by worker, engine_generation
),

slices as (
    select
        worker,
        engine_generation,
        least(9, floor((at_s - from_s) / ((until_s - from_s) / 10))) as slice,
        count(*) filter (change = 1) as sent,
        sum(change) as change
    from (
        select worker, engine_generation, unnest([sent_at_s, finished_at_s]) as at_s, unnest([1, -1]) as change
        from sent
    )
    join engines using (worker, engine_generation)
    where until_s > from_s and due_span_s > 0 and at_s between from_s and until_s
    group by worker, engine_generation, slice
),

moments as (
    select
        until_s - from_s as judged_s,
        sum(
            (least(finished_at_s, until_s) - (from_s + until_s) / 2) ** 2
            - (greatest(sent_at_s, from_s) - (from_s + until_s) / 2) ** 2
        ) / 2 as moment
    from sent
    join engines using (worker, engine_generation)
    where until_s > from_s and due_span_s > 0 and finished_at_s > from_s and sent_at_s < until_s
    group by worker, engine_generation, from_s, until_s
)

select
    (select arrival from raw.loads where run_id = getvariable('run_id')) as arrival,
    (
        select count(*) > 0 from raw.engine_events
        where run_id = getvariable('run_id') and event = 'load_ended' and (details_json ->> '$.reason') = 'saturated'
    ) as was_ended,
    (select sum(sent - 1) / sum(due_span_s) from engines where due_span_s > 0) as offered_requests_per_s,
    (select sum(finished) filter (stretch_s > 0) / sum(stretch_s) from engines) as finished_requests_per_s,
    (select struct_pack(engines := count(*), judged_s := sum(judged_s),
        growth_per_s := sum(moment) / sum(judged_s ** 3 / 12)) from moments) as slope,
    (select struct_pack(sent := sum(sent), change := sum(change), squares := sum(change ** 2)) from slices) as changes;
