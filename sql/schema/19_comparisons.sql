-- Grain: one row per kind × run × baseline run × metric × detail.
create table if not exists raw.comparisons (
    kind varchar not null,
    run_id varchar not null,
    baseline_run_id varchar not null,
    metric varchar not null,
    detail varchar,
    value double,
    baseline_value double,
    difference double,
    low double,
    high double,
    p_value double,
    n bigint,
    method varchar not null,
    verdict varchar not null,
    compared_at timestamp not null
);

comment on table raw.comparisons is 'One row per comparison of two runs × metric, stored when a gate, a benchmark or a leaderboard compares them. The next one of the same kind and runs replaces it; a change of a run''s rows deletes it.';
comment on column raw.comparisons.kind is 'gate (of nights and suites, too), benchmark (of configurations, named by their newest repeats), frontier (their recovery, for the table frontier) or leaderboard.';
comment on column raw.comparisons.run_id is 'The run, or the newest repeat of a configuration; for kl, the run in which its engine read the answers.';
comment on column raw.comparisons.baseline_run_id is 'The run that it was compared with.';
comment on column raw.comparisons.metric is 'The metric, as in metric_value; accuracy for mean scores. A frontier has recovery for each task, and over all tasks the weighted means mean_recovery and mean_accuracy, and noise_floor, or kl.';
comment on column raw.comparisons.detail is 'The scorer for accuracy. In a frontier, the configuration. NULL for other metrics, and in benchmarks.';
comment on column raw.comparisons.value is 'Mean score over the pairs, or the median over the repeats.';
comment on column raw.comparisons.baseline_value is 'The same of the baseline; for kl its floor.';
comment on column raw.comparisons.difference is 'Mean difference by prompt, or between repeats the change of the geometric mean as a share. Of recoveries, value / baseline_value; of kl, the ratio of a typical prompt to the floor.';
comment on column raw.comparisons.low is 'Lower end of its 95% interval. NULL if there are too few prompts or repeats.';
comment on column raw.comparisons.p_value is 'Two-sided p of no difference; in leaderboards adjusted for all pairs, and of speeds for all limits. NULL without a test.';
comment on column raw.comparisons.n is 'Pairs of prompts, or repeats of both sides.';
comment on column raw.comparisons.method is 'prompts: scores in pairs; repeats: a t-test of logarithms; nights: the same of correlated nights; reread: divergences by prompt.';
comment on column raw.comparisons.verdict is 'pass, fail, suspect or inconclusive by a gate; otherwise worse, better, same, unclear or too_few; in a frontier baseline, pass, fail or inconclusive, and compared for its tasks.';
comment on column raw.comparisons.compared_at is 'UTC wall clock of the comparison.';
