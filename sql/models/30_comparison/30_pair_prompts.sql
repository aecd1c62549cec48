-- Grain: one row per scorer × prompt row of either run.
--
-- scorer: the scorer, as in scores.
-- prompt_id: the prompt.
-- occurrence: which of the run's rows with that prompt_id.
-- candidate_value: mean score of the candidate's samples of it. NULL where the candidate has none.
-- baseline_value: the same of the baseline.
-- has_error: whether a sample of either run is an error, which scores 0.
-- difference: candidate_value − baseline_value. NULL where one run has no score.
create or replace macro pair_prompts(candidate, baseline) as table
with

-- Both sides below each other rather than a full join, which DuckDB 1.5 cannot do once per pair of a leaderboard.
read_sides as (
    select
        scorer, prompt_id, occurrence, mean_value as candidate_value, null as baseline_value, error_samples
    from prompt_score
    where run_id = candidate
    union all
    select scorer, prompt_id, occurrence, null, mean_value, error_samples
    from prompt_score
    where run_id = baseline
),

join_sides as (
    select
        scorer,
        prompt_id,
        occurrence,
        any_value(candidate_value) as candidate_value,
        any_value(baseline_value) as baseline_value,
        sum(error_samples) > 0 as has_error,
        any_value(candidate_value) - any_value(baseline_value) as difference
    from read_sides
    group by scorer, prompt_id, occurrence
)

select * from join_sides;

comment on macro table pair_prompts is 'pair_prompts(candidate, baseline), two run ids: one row per scorer × prompt row of either run, with the mean score of each side.';
