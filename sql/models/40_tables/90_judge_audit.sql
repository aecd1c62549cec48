-- Grain: one row per judge or panel × measure.
-- columns of: raw.judge_audits
create or replace view main.judge_audit as
select * from raw.judge_audits order by len(judges), judges, scorer, measure;

comment on view main.judge_audit is 'One row per judge or panel × measure: agreement with labels, kappa, sensitivity and specificity, the share of good answers corrected for the judge''s errors, reliability over repeats, and biases of pairs. Stored when judges end or a report shows them.';
