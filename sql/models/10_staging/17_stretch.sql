-- Grain: one row per run × kind × interval of seconds.
create or replace view internal.stretch as
with

list_spans as (
    select run_id, 'work' as kind, work_began_at_s as from_s, work_ended_at_s as until_s
    from engine
    where work_ended_at_s is not null
    union all
    select
        run_id, 'attempt', least(work_began_at_s, first_arrived_at_s), greatest(work_ended_at_s, last_finished_at_s)
    from engine
    where greatest(work_ended_at_s, last_finished_at_s) is not null
    union all
    select
        run_id, 'window', case when stretch_s > 0 then steady_from_s end, case when stretch_s > 0 then ends_at_s end
    from internal.load_stretch
    where has_windows
),

-- An interval of the union begins where every earlier span has ended.
mark_beginnings as (
    select
        *,
        from_s > coalesce(max(until_s) over (
            partition by run_id, kind order by from_s rows between unbounded preceding and 1 preceding
        ), '-infinity'::double) as is_beginning
    from list_spans
),

number_intervals as (
    select
        *,
        count(*) filter (is_beginning) over (
            partition by run_id, kind order by from_s rows between unbounded preceding and current row
        ) as position
    from mark_beginnings
)

select run_id, kind, min(from_s) as from_s, max(until_s) as until_s
from number_intervals
group by run_id, kind, position;

comment on view internal.stretch is 'One row per run × kind × interval: the seconds that throughput and energy are about.';
