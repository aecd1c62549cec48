-- Grain: one row per run × moment at which the number of requests in flight changes.
-- An exact sweep: a request is in flight in [arrived_at_s, finished_at_s), whether it ended in a result or an error.
-- For a request that crashed engines, only its time in the engine that answered it is known.
create or replace view internal.concurrency as
with

mark_changes as (
    select run_id, unnest([arrived_at_s, finished_at_s]) as at_s, unnest([1, -1]) as change_requests
    from stg_requests
    where arrived_at_s < finished_at_s
),

merge_moments as (
    select run_id, at_s, sum(change_requests) as change_requests
    from mark_changes
    group by run_id, at_s
    having sum(change_requests) <> 0
),

sweep_moments as (
    select
        run_id,
        at_s,
        lead(at_s) over moments as until_s,
        cast(sum(change_requests) over moments as bigint) as in_flight_requests
    from merge_moments
    window moments as (partition by run_id order by at_s)
),

measure_stretches as (
    select
        run_id,
        at_s,
        until_s,
        until_s - at_s as stretch_s,
        in_flight_requests
    from sweep_moments
)

select * from measure_stretches;

comment on view internal.concurrency is 'One row per run × moment at which the number of requests in flight changes: an exact sweep over [arrived_at_s, finished_at_s) of results and errors, nothing sampled. Requests without both stamps are left out. A request that a crashed engine lost is in flight from its arrival at the engine that answered it: while engines are rebuilt, and between attempts, nothing is in flight.';
comment on column internal.concurrency.run_id is 'The run.';
comment on column internal.concurrency.at_s is 'The moment, in seconds since the run''s start.';
comment on column internal.concurrency.until_s is 'The next moment; NULL for the last, after which nothing is in flight. Seconds since the run''s start.';
comment on column internal.concurrency.stretch_s is 'Seconds that the number holds: until_s − at_s.';
comment on column internal.concurrency.in_flight_requests is 'Requests in flight from at_s (included) to until_s (excluded): arrivals − departures so far.';
