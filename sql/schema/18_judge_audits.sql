-- Grain: one row per judge or panel × measure.
create table if not exists raw.judge_audits (
    judges varchar[] not null,
    scorer varchar not null,
    judged_run_id varchar,
    other_run_id varchar,
    measure varchar not null,
    value double,
    standard_error double,
    low double,
    high double,
    n bigint,
    audited_at timestamp not null
);

comment on table raw.judge_audits is 'One row per judge or panel × measure, stored when a judge ends or a report shows it. A panel is all judges of one rubric; a change of a judge''s rows deletes its audits.';
comment on column raw.judge_audits.judges is 'The judge''s run, or the runs of a panel.';
comment on column raw.judge_audits.scorer is 'The scorer of kind verdict.';
comment on column raw.judge_audits.judged_run_id is 'The judged run; for pairs, of answer a.';
comment on column raw.judge_audits.other_run_id is 'The run of answer b. NULL without pairs.';
comment on column raw.judge_audits.measure is 'Counts of judging requests: requests, judged_requests (with a verdict), unreadable_requests, error_requests, missing_requests (no score), labelled_requests and unknown_labels (neither a word nor a number of the scorer). Of verdicts: agreement, kappa, weighted_kappa, sensitivity, specificity, raw_share, corrected_share, flip_share, repeated_samples, nominal_alpha, interval_alpha, position_bias, consistent_share and length_bias, as docs/concepts/judges.md defines them. A measure that is not defined has no row.';
comment on column raw.judge_audits.value is 'The measure.';
comment on column raw.judge_audits.standard_error is 'Its standard error, the jackknife''s over clusters of judged prompts. NULL for one cluster and for counts, like the interval.';
comment on column raw.judge_audits.low is 'Lower end of the 95% interval: bound_share for shares of 0 and 1 and raw_share, otherwise value ± t × standard_error, cut to the range of the measure. NULL for fewer than five effective clusters (of corrected_share: of labelled prompts), or a kappa without variance.';
comment on column raw.judge_audits.high is 'Upper end.';
comment on column raw.judge_audits.n is 'Its cases: ballots, answers or pairs.';
comment on column raw.judge_audits.audited_at is 'UTC wall clock when it was computed.';
