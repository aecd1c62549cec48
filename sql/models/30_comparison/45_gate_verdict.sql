-- Grain: one row per run that a gate judged: the last judgement of a flow run (verdicts.flow_run_id), else the last.
create or replace view internal.gate_verdict as
with

find_last as (
    select
        *,
        rank() over (partition by run_id order by flow_run_id is null, judged_at desc, baseline_run_id) as age
    from raw.verdicts
)

select
    run_id,
    any_value(baseline_run_id) as baseline_run_id,
    any_value(judged_at) as judged_at,
    any_value(flow_run_id) as flow_run_id,
    case
        when bool_or(verdict = 'fail') then 'fail'
        when bool_or(verdict = 'suspect') then 'suspect'
        when bool_or(verdict = 'inconclusive') then 'inconclusive'
        else 'pass'
    end as verdict,
    coalesce(list(limit_on order by ordinal) filter (verdict = 'fail'), []) as failed_limits,
    coalesce(list(limit_on order by ordinal) filter (verdict = 'inconclusive'), []) as inconclusive_limits,
    string_agg(words, ' ' order by ordinal) filter (verdict in ('fail', 'suspect')) as words
from find_last
where age = 1
group by run_id;

comment on view internal.gate_verdict is 'One row per run that a gate judged: the result of its nightly run''s gate, or otherwise of the last gate. The table verdicts has every judgement, limit by limit.';
