-- Grain: one row per scorer × prompt row whose score differs between two runs, the worst first.
--
-- scorer: the scorer, as in scores.
-- pairing: how rows are paired; see pair_prompts.
-- prompt_id: the candidate's prompt.
-- occurrence: which of the run's rows with that prompt_id.
-- baseline_prompt_id: the baseline's prompt.
-- baseline_occurrence: which of the baseline's rows with that prompt_id.
-- candidate_value: mean score of the candidate's samples of it.
-- baseline_value: mean score of the baseline's samples of it.
-- has_error: whether a sample of either run is an error, which scores 0.
-- difference: candidate_value − baseline_value, never 0.
-- messages_json: the prompt as chat messages.
-- target: the expected answer.
create or replace macro internal.compare_prompts(candidate, baseline, pair_by := 'auto') as table
with

keep_changes as (
    select * exclude (cluster, baseline_cluster)
    from internal.pair_prompts(candidate, baseline, pair_by := pair_by)
    where difference <> 0
),

read_prompts as (
    select distinct on (prompt_id, occurrence) prompt_id, occurrence, messages_json, target
    from raw.prompts
    where run_id = candidate
),

join_prompts as (
    select keep_changes.*, read_prompts.messages_json, read_prompts.target
    from keep_changes
    left join read_prompts using (prompt_id, occurrence)
    order by difference, scorer, prompt_id, occurrence
)

select * from join_prompts;

comment on macro table internal.compare_prompts is 'compare_prompts(candidate, baseline, pair_by := ''auto''), two run ids: one row per scorer × prompt row whose mean score differs between the two, the worst first. pair_by is auto, prompt, id or row.';
