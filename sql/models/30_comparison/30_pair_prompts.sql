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

read_candidate as (
    select scorer, prompt_id, occurrence, mean_value as candidate_value, error_samples as candidate_errors
    from prompt_score
    where run_id = candidate
),

read_baseline as (
    select scorer, prompt_id, occurrence, mean_value as baseline_value, error_samples as baseline_errors
    from prompt_score
    where run_id = baseline
),

join_sides as (
    select
        scorer,
        prompt_id,
        occurrence,
        read_candidate.candidate_value,
        read_baseline.baseline_value,
        coalesce(candidate_errors, 0) + coalesce(baseline_errors, 0) > 0 as has_error,
        read_candidate.candidate_value - read_baseline.baseline_value as difference
    from read_candidate
    full join read_baseline using (scorer, prompt_id, occurrence)
)

select * from join_sides;

comment on macro table pair_prompts is 'pair_prompts(candidate, baseline), two run ids: one row per scorer × prompt row of either run, with the mean score of each side.';
