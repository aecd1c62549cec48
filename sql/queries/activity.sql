-- Grain: one row per run × slice of its time, at most 61 of equal width, none left out.
with

-- Not materialized, here and below: a filter on run_id must reach every use of the step.
select_stamped as not materialized (
    select run_id, status, coalesce(arrived_at_s, finished_at_s) as arrived_at_s, finished_at_s, output_tokens
    from request
    where finished_at_s is not null
),

span_runs as (
    select
        run_id,
        min(arrived_at_s) as first_at_s,
        max(finished_at_s) as last_at_s,
        greatest(last_at_s - first_at_s, 0.06) / 60 as least_width_s
    from select_stamped
    group by run_id
),

-- The next of 1, 2, 5, 10 × a power of ten, so that slices end where an axis has its marks.
choose_width as (
    select
        run_id,
        first_at_s,
        last_at_s,
        power(10, floor(log10(least_width_s))) as power_s,
        power_s * case
            when least_width_s <= power_s * 1.000001 then 1
            when least_width_s <= power_s * 2 then 2
            when least_width_s <= power_s * 5 then 5
            else 10
        end as width_s
    from span_runs
),

list_slices as not materialized (
    select
        run_id,
        width_s,
        unnest(range(
            cast(floor(first_at_s / width_s) as bigint), cast(floor(last_at_s / width_s) as bigint) + 1
        )) as position
    from choose_width
),

count_finished as (
    select
        select_stamped.run_id,
        cast(floor(finished_at_s / width_s) as bigint) as position,
        count(*) filter (status = 'ok') as finished_requests,
        count(*) filter (status = 'error') as error_requests,
        sum(output_tokens) filter (status = 'ok') as output_tokens
    from select_stamped
    join choose_width on choose_width.run_id = select_stamped.run_id
    group by all
),

-- Beginnings of slices change nothing, but cut every interval there.
mark_changes as (
    select run_id, arrived_at_s as at_s, 1 as change_requests, null as position
    from select_stamped
    where arrived_at_s < finished_at_s
    union all
    select run_id, finished_at_s, -1, null
    from select_stamped
    where arrived_at_s < finished_at_s
    union all
    select run_id, position * width_s, 0, position
    from list_slices
),

sweep_changes as (
    select
        run_id,
        lead(at_s) over moments - at_s as stretch_s,
        sum(sum(change_requests)) over moments as in_flight_requests,
        max(max(position)) over moments as position
    from mark_changes
    group by run_id, at_s
    window moments as (partition by run_id order by at_s)
),

add_in_flight as (
    select
        run_id,
        position,
        -- the last moment of a run has no interval, and nothing is in flight after it
        coalesce(sum(in_flight_requests * stretch_s), 0) as in_flight_s
    from sweep_changes
    group by all
),

fill_slices as (
    select
        list_slices.run_id,
        list_slices.position * width_s as begins_at_s,
        (list_slices.position + 1) * width_s as ends_at_s,
        coalesce(finished_requests, 0) as finished_requests,
        coalesce(error_requests, 0) as error_requests,
        cast(coalesce(output_tokens, 0) as bigint) as output_tokens,
        coalesce(finished_requests, 0) / width_s as requests_per_s,
        coalesce(output_tokens, 0) / width_s as output_tokens_per_s,
        in_flight_s / width_s as mean_in_flight_requests
    from list_slices
    left join count_finished
        on count_finished.run_id = list_slices.run_id
        and count_finished.position = list_slices.position
    left join add_in_flight
        on add_in_flight.run_id = list_slices.run_id
        and add_in_flight.position = list_slices.position
)

select * from fill_slices
where run_id = getvariable('run_id')
order by begins_at_s;
