-- Grain: one row per run × scorer × prompt row.
-- Not kept, as it is scores added up and nearly as large.
create or replace view internal.prompt_score as
with

average_samples as (
    select
        run_id,
        scorer,
        prompt_id,
        occurrence,
        count(*) as samples,
        count(*) filter (value = 1) as right_samples,
        count(error_kind) as error_samples,
        avg(value) as mean_value
    from raw.scores
    group by run_id, scorer, prompt_id, occurrence
)

select * from average_samples;

comment on view internal.prompt_score is 'One row per run × scorer × prompt row with a score: what its repeats scored. Comparisons pair runs on scorer, prompt_id and occurrence.';
comment on column internal.prompt_score.samples is 'Scores: the repeats that were answered.';
comment on column internal.prompt_score.right_samples is 'Those of them that are 1.';
comment on column internal.prompt_score.error_samples is 'Those of them that are errors, which score 0.';
comment on column internal.prompt_score.mean_value is 'Their mean, 0 to 1.';
