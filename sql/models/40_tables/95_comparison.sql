-- Grain: one row per kind × run × baseline run × metric × detail.
-- columns of: raw.comparisons
create or replace view main.comparison as
select * from raw.comparisons order by kind, run_id, baseline_run_id, metric, detail;

comment on view main.comparison is 'One row per comparison of two runs × metric: both values, their difference with its 95% interval, p and verdict. Stored when a gate, a benchmark or a leaderboard compares them.';
