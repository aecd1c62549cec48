-- Grain: one row per run × scorer × prompt row.
-- Not kept, as it is scores added up and nearly as large.
create or replace view internal.prompt_score as
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
group by run_id, scorer, prompt_id, occurrence;

comment on view internal.prompt_score is 'One row per run × scorer × prompt row with a score: what its repeats scored. Comparisons pair runs on scorer, prompt_id and occurrence.';
