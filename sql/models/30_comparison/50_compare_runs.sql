-- Grain: one row per scorer of either run.
--
-- `pair_by` is prompt, id or row, or auto, which chooses one of them; see overlap_prompts. `baseline_repeats` is a
-- list of run ids, repeats of the baseline, whose samples count like its own: the baseline is their mean by prompt.
-- `candidate_repeats` is the same for the candidate.
--
-- scorer: the scorer, as in scores.
-- same_scorer: whether both runs were scored with the same kind, arguments and definition (scorers.definition). NULL if
--     one run lacks the scorer. If false, `assayline score RUN` scores a run again by today's definition.
-- paired_by: how prompt rows are paired: prompt (prompt_id and occurrence), id (source_id and target) or row
--     (source_row and target).
-- prompts: prompt rows that both runs have a score for: the pairs.
-- only_candidate: prompt rows that only the candidate has a score for.
-- only_baseline: prompt rows that only the baseline has a score for.
-- overlap_share: prompts / all prompt rows of either run, 0 to 1.
-- candidate_mean: mean score of the candidate over the pairs, each prompt row counting once.
-- baseline_mean: mean score of the baseline over the pairs, each prompt row counting once.
-- difference: candidate_mean − baseline_mean: the mean of the differences prompt by prompt. Its 95% interval and tests
--     are in the table comparison.
-- better_prompts: pairs in which the candidate scored higher.
-- worse_prompts: pairs in which it scored lower.
-- error_pairs: pairs in which a sample of either side is an error, which scores 0 whatever the model can do.
create or replace macro main.compare_runs(
    candidate,
    baseline,
    pair_by := 'auto',
    baseline_repeats := []::varchar[],
    candidate_repeats := []::varchar[]
) as table
with

-- Results of a harness are stored next to a scorer's arguments, but are not arguments.
compare_scorers as (
    select
        scorer,
        count(distinct (kind, json_merge_patch(arguments_json, '{"harness": null}'), definition)) = 1 as same_scorer
    from raw.scorers
    where run_id in (candidate, baseline)
    group by scorer
    having count(*) = 2
)

select
    scorer,
    any_value(same_scorer) as same_scorer,
    any_value(pairing) as paired_by,
    count(pairs.difference) as prompts,
    count(*) filter (baseline_value is null) as only_candidate,
    count(*) filter (candidate_value is null) as only_baseline,
    count(pairs.difference) / count(*) as overlap_share,
    avg(candidate_value) filter (pairs.difference is not null) as candidate_mean,
    avg(baseline_value) filter (pairs.difference is not null) as baseline_mean,
    avg(pairs.difference) as difference,
    count(*) filter (pairs.difference > 0) as better_prompts,
    count(*) filter (pairs.difference < 0) as worse_prompts,
    count(*) filter (pairs.difference is not null and has_error) as error_pairs
from internal.pair_prompts(
    candidate,
    baseline,
    pair_by := pair_by,
    baseline_repeats := baseline_repeats,
    candidate_repeats := candidate_repeats
) as pairs
left join compare_scorers using (scorer)
group by scorer;

comment on macro table main.compare_runs is 'compare_runs(candidate, baseline, pair_by := ''auto''), two run ids: one row per scorer, with the scores compared prompt by prompt. pair_by is auto, prompt, id or row. baseline_repeats and candidate_repeats are lists of run ids that count like the baseline and the candidate. The table comparison has the intervals, tests and verdicts that were made.';
