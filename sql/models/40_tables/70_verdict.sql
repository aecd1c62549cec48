-- Grain: one row per judgement of a run by the gate × limit.
-- columns of: raw.verdicts, raw.runs
create or replace view main.verdict as
select
    verdicts.run_id,
    runs.name,
    runs.model,
    runs.started_at,
    verdicts.* exclude (run_id, prompts_json),
    gate_verdict.judged_at is not null as is_last
from raw.verdicts
left join raw.runs on runs.run_id = verdicts.run_id
left join internal.gate_verdict
    on gate_verdict.run_id = verdicts.run_id
    and gate_verdict.baseline_run_id = verdicts.baseline_run_id
    and gate_verdict.judged_at = verdicts.judged_at;

comment on view main.verdict is 'One row per judgement of a run by the gate × limit. A judgement (run_id, baseline_run_id, judged_at) is never replaced: a run that is judged again has more rows.';
comment on column main.verdict.verdict is 'pass: shown to be within the limit; fail: beyond the limit, and for scores and speeds shown to be; suspect: of a nightly run that one comparison alone would fail; inconclusive: neither; waiting: for the repeats that later nights add.';
comment on column main.verdict.is_last is 'Whether it belongs to the judgement that counts: that of the run''s own night, or without one, the newest.';
