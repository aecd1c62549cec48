-- Grain: one row per scorer of either run × cluster of prompt rows. Prompt rows that are the only one of their cluster
-- are one row together, and so are those that only one of the runs has.
--
-- The parameters are those of pair_prompts. Input of the tests in `assayline/stats/pairs.py`; a cluster is a value of
-- prompts.columns.cluster, else a prompt_id, of the run with fewer of them.
--
-- scorer: the scorer, as in scores.
-- same_scorer: whether both runs were scored with the same kind, arguments and definition (scorers.definition). NULL if
--     one run lacks the scorer. If false, `assayline score RUN` scores a run again by today's definition.
-- paired_by: how prompt rows are paired: prompt, id or row.
-- is_single: whether these are rows that are alone in their cluster.
-- prompts: prompt rows that both runs have a score for.
-- only_candidate: prompt rows that only the candidate has a score for.
-- only_baseline: prompt rows that only the baseline has a score for.
-- first_total: sum of the candidate's scores over the pairs.
-- second_total: sum of the baseline's.
-- first_squares: sum of their squares.
-- second_squares: sum of the baseline's.
-- squares: sum of the squared differences.
-- largest: largest absolute difference.
-- better: pairs in which the candidate scored higher.
-- worse: pairs in which it scored lower.
-- is_binary: whether all scores are 0 or 1.
-- error_pairs: pairs in which a sample of either side is an error, which scores 0 whatever the model can do.
create or replace macro internal.sum_pairs(
    candidate,
    baseline,
    pair_by := 'auto',
    baseline_repeats := []::varchar[],
    candidate_repeats := []::varchar[]
) as table
with

pair_scores as materialized (
    select *, difference is not null as is_pair
    from internal.pair_prompts(
        candidate,
        baseline,
        pair_by := pair_by,
        baseline_repeats := baseline_repeats,
        candidate_repeats := candidate_repeats
    )
),

choose_sides as (
    select scorer, count(distinct baseline_cluster) < count(distinct cluster) as has_fewer_in_baseline
    from pair_scores
    where is_pair
    group by scorer
),

name_clusters as (
    select pair_scores.*, case when has_fewer_in_baseline then baseline_cluster else cluster end as pair_cluster
    from pair_scores
    left join choose_sides using (scorer)
),

share_clusters as (
    select
        *,
        case
            when is_pair and count(*) over (partition by scorer, is_pair, pair_cluster) > 1 then pair_cluster
        end as shared_cluster
    from name_clusters
),

-- Results of a harness are stored next to a scorer's arguments, but are not arguments.
compare_scorers as (
    select
        scorer,
        count(distinct (kind, json_merge_patch(arguments_json, '{"harness": null}'), definition)) = 1 as same_scorer
    from raw.scorers
    where run_id in (candidate, baseline)
    group by scorer
    having count(*) = 2
),

add_pairs as (
    select
        scorer,
        any_value(same_scorer) as same_scorer,
        any_value(pairing) as paired_by,
        shared_cluster is null as is_single,
        count(difference) as prompts,
        count(*) filter (baseline_value is null) as only_candidate,
        count(*) filter (candidate_value is null) as only_baseline,
        coalesce(sum(candidate_value) filter (is_pair), 0) as first_total,
        coalesce(sum(baseline_value) filter (is_pair), 0) as second_total,
        coalesce(sum(candidate_value ** 2) filter (is_pair), 0) as first_squares,
        coalesce(sum(baseline_value ** 2) filter (is_pair), 0) as second_squares,
        coalesce(sum(difference ** 2), 0) as squares,
        coalesce(max(abs(difference)), 0) as largest,
        count(*) filter (difference > 0) as better,
        count(*) filter (difference < 0) as worse,
        coalesce(bool_and(candidate_value in (0, 1) and baseline_value in (0, 1)) filter (is_pair), true) as is_binary,
        count(*) filter (is_pair and has_error) as error_pairs
    from share_clusters
    left join compare_scorers using (scorer)
    group by scorer, is_pair, shared_cluster
)

select * from add_pairs;

comment on macro table internal.sum_pairs is 'sum_pairs(candidate, baseline, pair_by := ''auto''), two run ids: one row per scorer and cluster of prompt rows, with the sums that a test needs.';
