-- Grain: one row per run that a gate judged: its last judgement.
--
-- keep: no
create or replace view gate_verdict as
with

find_last as (
    select
        *,
        rank() over (partition by run_id order by judged_at desc, baseline_run_id) as age
    from verdicts
),

sum_up_limits as (
    select
        run_id,
        any_value(baseline_run_id) as baseline_run_id,
        any_value(judged_at) as judged_at,
        case
            when count(*) filter (verdict = 'broken') > 0 then 'broken'
            when count(*) filter (verdict = 'held') > 0 then 'held'
            else 'not judged'
        end as verdict,
        coalesce(list(limit_on order by ordinal) filter (verdict = 'broken'), []) as broken_limits,
        string_agg(words, ' ' order by ordinal) filter (verdict = 'broken') as words
    from find_last
    where age = 1
    group by run_id
)

select * from sum_up_limits;

comment on view gate_verdict is 'One row per run that a gate judged: what it said the last time. The table verdicts has each limit.';
comment on column gate_verdict.run_id is 'The run that was judged.';
comment on column gate_verdict.baseline_run_id is 'The run that it was held against.';
comment on column gate_verdict.judged_at is 'UTC wall clock of the judgement.';
comment on column gate_verdict.verdict is 'broken where a limit is, else held where one is, else not judged.';
comment on column gate_verdict.broken_limits is 'What the broken limits are on, in the gate''s order; empty where none is broken.';
comment on column gate_verdict.words is 'What was found of the broken limits, in sentences. NULL where none is broken.';
