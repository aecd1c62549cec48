-- Grain: one row per scorer × pair of prompt rows, or prompt row that only one of the runs has.
--
-- `pair_by` is prompt, id or row, or auto, which chooses one of them; see overlap_prompts. Rows of a run with the same
-- id are averaged, as repeats are. `baseline_repeats` and `candidate_repeats` are lists of run ids, repeats of either
-- run, whose samples count like its own.
--
-- scorer: the scorer, as in scores.
-- pairing: how rows are paired: prompt, id or row.
-- prompt_id: the candidate's prompt; the baseline's if only that has the row.
-- occurrence: which of the run's rows with that prompt_id.
-- baseline_prompt_id: the baseline's prompt, the same by prompt. NULL if only the candidate has the row.
-- baseline_occurrence: which of the baseline's rows with that prompt_id.
-- cluster: the candidate row's cluster: its value of prompts.columns.cluster, else its prompt_id.
-- baseline_cluster: the baseline row's cluster.
-- candidate_value: mean score of the candidate's samples of it. NULL if the candidate has none.
-- baseline_value: mean score of the baseline's samples of it.
-- has_error: whether a sample of either side is an error, which scores 0.
-- difference: candidate_value − baseline_value. NULL if one run has no score.
create or replace macro internal.pair_prompts(
    candidate,
    baseline,
    pair_by := 'auto',
    baseline_repeats := []::varchar[],
    candidate_repeats := []::varchar[]
) as table
with

choose_pairing as (
    select pairing from internal.overlap_prompts(candidate, baseline) where pair_by = 'auto' and is_chosen
    union all
    select pair_by where pair_by <> 'auto'
),

-- Both sides below each other rather than a full join, which DuckDB 1.5 cannot do once per pair of a leaderboard.
read_sides as (
    select *, candidate as side_id, true as is_candidate
    from internal.prompt_score
    where run_id = candidate or list_contains(candidate_repeats, run_id)
    union all
    select *, baseline, false
    from internal.prompt_score
    where run_id = baseline or list_contains(baseline_repeats, run_id)
),

key_sides as (
    select
        read_sides.*,
        choose_pairing.pairing,
        {
            'prompt_id': prompt_id, 'occurrence': occurrence, 'cluster': coalesce(prompt_cluster.cluster, prompt_id)
        } as prompt,
        internal.pair_key(pairing, side_id, prompt_id, occurrence, source_id, source_row, target) as pair
    from read_sides
    cross join choose_pairing
    left join raw.prompts using (run_id, prompt_id, occurrence)
    left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
),

join_sides as (
    select
        scorer,
        pairing,
        min(prompt) filter (is_candidate) as candidate_prompt,
        min(prompt) filter (not is_candidate) as baseline_prompt,
        avg(mean_value) filter (is_candidate) as candidate_value,
        avg(mean_value) filter (not is_candidate) as baseline_value,
        sum(error_samples) > 0 as has_error
    from key_sides
    group by scorer, pairing, pair
)

select
    scorer,
    pairing,
    coalesce(candidate_prompt, baseline_prompt).prompt_id as prompt_id,
    coalesce(candidate_prompt, baseline_prompt).occurrence as occurrence,
    baseline_prompt.prompt_id as baseline_prompt_id,
    baseline_prompt.occurrence as baseline_occurrence,
    candidate_prompt.cluster as cluster,
    baseline_prompt.cluster as baseline_cluster,
    candidate_value,
    baseline_value,
    has_error,
    candidate_value - baseline_value as difference
from join_sides;

comment on macro table internal.pair_prompts is 'pair_prompts(candidate, baseline, pair_by := ''auto''), two run ids: one row per scorer × prompt row of either run, with the mean score of each side. pair_by is auto, prompt, id or row.';
