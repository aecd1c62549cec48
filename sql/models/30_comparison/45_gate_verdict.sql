-- Grain: one row per run that a gate judged: the last judgement of a flow run (verdicts.flow_run_id), else the last.
create or replace view internal.gate_verdict as
with

find_last as (
    select
        *,
        rank() over (partition by run_id order by flow_run_id is null, judged_at desc, baseline_run_id) as age
    from raw.verdicts
),

sum_up_limits as (
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
    group by run_id
)

select * from sum_up_limits;

comment on view internal.gate_verdict is 'One row per run that a gate judged: the result of its nightly run''s gate, or otherwise of the last gate. The table verdicts has every judgement, limit by limit.';
comment on column internal.gate_verdict.run_id is 'The run that was judged.';
comment on column internal.gate_verdict.baseline_run_id is 'Baseline run of the comparison.';
comment on column internal.gate_verdict.judged_at is 'UTC wall clock of the judgement.';
comment on column internal.gate_verdict.flow_run_id is 'Flow run whose gate it was; see verdicts.flow_run_id. NULL for a gate of its own.';
comment on column internal.gate_verdict.verdict is 'fail if a limit fails, else suspect or inconclusive if one is, else pass.';
comment on column internal.gate_verdict.failed_limits is 'Metrics of the failed limits, in the gate''s order; empty if none failed.';
comment on column internal.gate_verdict.inconclusive_limits is 'Metrics of the inconclusive limits: the data neither show that the run is worse nor that it is within them.';
comment on column internal.gate_verdict.words is 'Messages about the limits that failed or are suspect. NULL without one.';
