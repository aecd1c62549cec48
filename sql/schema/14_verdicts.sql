-- Grain: one row per judgement of a run × limit. A judgement is a run_id, baseline_run_id and judged_at.
create table if not exists raw.verdicts (
    run_id varchar not null,
    baseline_run_id varchar not null,
    judged_at timestamp not null,
    ordinal integer not null,
    limit_on varchar not null,
    verdict varchar not null,
    candidate_value double,
    baseline_value double,
    limit_value double,
    unit varchar not null,
    words varchar not null,
    limits_json varchar,
    flow_run_id varchar,
    prompts_json varchar
);

comment on table raw.verdicts is 'One row per judgement of a run by the gate × limit. A judgement (run_id, baseline_run_id, judged_at) is never replaced: judged again, a run has more rows.';
comment on column raw.verdicts.run_id is 'The run that was judged.';
comment on column raw.verdicts.baseline_run_id is 'Baseline run of the comparison.';
comment on column raw.verdicts.judged_at is 'UTC wall clock of the judgement.';
comment on column raw.verdicts.ordinal is 'Place of the limit in the gate''s report, from 0.';
comment on column raw.verdicts.limit_on is 'Subject of the limit: errors, accuracy with the scorer''s name, or a metric of run_metric.';
comment on column raw.verdicts.verdict is 'pass, fail, suspect, inconclusive or waiting.';
comment on column raw.verdicts.candidate_value is 'Value of the run; for a speed, over its repeats. NULL if there is none.';
comment on column raw.verdicts.baseline_value is 'The same of the baseline.';
comment on column raw.verdicts.limit_value is 'The limit: a drop, a share of errors, or a slowdown as a share. NULL if there was none.';
comment on column raw.verdicts.unit is 'Unit of candidate_value and baseline_value; empty if there are none.';
comment on column raw.verdicts.words is 'Message of the gate, with its figures.';
comment on column raw.verdicts.limits_json is 'All limits of the judgement as JSON: the fields of the spec''s gate, with overrides merged in.';
comment on column raw.verdicts.flow_run_id is 'Id in Prefect of the flow run whose gate it was, such as a nightly run. NULL for a gate started by hand.';
comment on column raw.verdicts.prompts_json is 'Prompts that the limit names, as a JSON list: the columns of verdict_prompt. NULL if it names none.';
