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
-- difference: candidate_mean − baseline_mean: the mean of the differences prompt by prompt.
-- clusters: independent clusters of pairs, G: different values of prompts.columns.cluster, else prompt ids, of the run
--     with fewer of them.
-- effective_clusters: G* = (Σ n)² / Σ n² over the clusters' sizes (Kish). Degrees of freedom are G* − 1.
-- different_clusters: clusters whose mean differs.
-- effective_pairs: independent pairs that they are worth: effective_samples of the differences.
-- mean_square: mean squared difference over the pairs.
-- padding: sum of the squared differences of two pairs more, one better and one worse: 2 × (1 − s × (1 − m²)) for a
--     share s of pairs that differ, by at most m. For scores of 0 and 1 it is 2.
-- candidate_square: mean squared score of the candidate over the pairs.
-- baseline_square: mean squared score of the baseline over the pairs.
-- standard_error: of the difference, the jackknife's over clusters (CR3): sqrt((G − 1) / G × Σ over clusters of
--     (difference without the cluster − difference)²). If each pair is a cluster, it is that of the paired t-test. NULL
--     for fewer than two clusters.
-- low: lower end of the 95% interval of the difference, that of Bonett and Price 2012: with two pairs more (padding),
--     so that equal answers do not prove that nothing differs. For m effective_pairs and q = mean_square: d̃ ± t ×
--     sqrt(((m × q + padding) / (m + 2) − d̃²) / (m + 2)), d̃ = m × difference / (m + 2), t the quantile with G* − 1
--     degrees of freedom. NULL for fewer than five effective clusters, too few for an interval.
-- high: upper end.
-- is_proportion: whether all scores are 0 or 1 and no cluster has several pairs.
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

pair_scores as (
    select *
    from internal.pair_prompts(
        candidate,
        baseline,
        pair_by := pair_by,
        baseline_repeats := baseline_repeats,
        candidate_repeats := candidate_repeats
    )
),

count_pairs as (
    select
        scorer,
        any_value(pairing) as paired_by,
        count(difference) as prompts,
        count(*) filter (baseline_value is null) as only_candidate,
        count(*) filter (candidate_value is null) as only_baseline,
        avg(candidate_value) filter (difference is not null) as candidate_mean,
        avg(baseline_value) filter (difference is not null) as baseline_mean,
        avg(difference) as difference,
        count(*) filter (difference > 0) as better_prompts,
        count(*) filter (difference < 0) as worse_prompts,
        count(*) filter (difference is not null and has_error) as error_pairs,
        sum(difference ** 2) as squares,
        coalesce(max(abs(difference)), 0) as largest,
        avg(candidate_value ** 2) filter (difference is not null) as candidate_square,
        avg(baseline_value ** 2) filter (difference is not null) as baseline_square,
        bool_and(candidate_value in (0, 1) and baseline_value in (0, 1)) filter (difference is not null) as is_binary,
        count(distinct baseline_cluster) filter (difference is not null)
            < count(distinct cluster) filter (difference is not null) as has_fewer_in_baseline
    from pair_scores
    group by scorer
),

add_clusters as (
    select
        scorer,
        case
            when count_pairs.has_fewer_in_baseline then pair_scores.baseline_cluster
            else pair_scores.cluster
        end as pair_cluster,
        count(*) as size,
        sum(pair_scores.difference) as total,
        sum(pair_scores.difference - count_pairs.difference) / nullif(any_value(prompts) - size, 0) as move
    from pair_scores
    join count_pairs using (scorer)
    where pair_scores.difference is not null
    group by scorer, pair_cluster
),

spread_differences as (
    select
        scorer,
        count(*) as clusters,
        sum(size) ** 2 / sum(size ** 2) as effective_clusters,
        count(*) filter (abs(total) > 1e-12) as different_clusters,
        sqrt(sum(move ** 2) * (count(*) - 1) / count(*)) as standard_error
    from add_clusters
    group by scorer
),

measure_pairs as (
    select
        count_pairs.*,
        spread_differences.* exclude (scorer),
        is_binary and clusters = prompts as is_proportion,
        squares / prompts as mean_square,
        2 * (1 - (better_prompts + worse_prompts) / prompts * (1 - largest ** 2)) as padding,
        internal.effective_samples(
            prompts,
            clusters,
            effective_clusters,
            case
                when squares - prompts * difference ** 2 > 1e-12 * squares
                then squares - prompts * difference ** 2 else 0
            end,
            standard_error
        ) as effective_pairs
    from count_pairs
    left join spread_differences using (scorer)
),

find_bounds as (
    select
        *,
        effective_pairs * difference / (effective_pairs + 2) as padded_difference,
        case when effective_clusters >= 5 - 1e-9 then internal.t_quantile(effective_clusters - 1) end * sqrt(
            ((effective_pairs * mean_square + padding) / (effective_pairs + 2) - padded_difference ** 2)
            / (effective_pairs + 2)
        ) as half_width
    from measure_pairs
),

-- Results of a harness are stored next to a scorer's arguments, but are not arguments.
compare_scorers as (
    select
        scorer,
        count(*) = 2
            and count(distinct (kind, json_merge_patch(arguments_json, '{"harness": null}'), definition)) = 1
            as same_scorer
    from raw.scorers
    where run_id in (candidate, baseline)
    group by scorer
    having count(*) = 2
),

join_parts as (
    select
        find_bounds.scorer,
        compare_scorers.same_scorer,
        find_bounds.paired_by,
        find_bounds.prompts,
        find_bounds.only_candidate,
        find_bounds.only_baseline,
        prompts / (prompts + only_candidate + only_baseline) as overlap_share,
        find_bounds.candidate_mean,
        find_bounds.baseline_mean,
        find_bounds.difference,
        coalesce(find_bounds.clusters, 0) as clusters,
        find_bounds.effective_clusters,
        find_bounds.different_clusters,
        find_bounds.effective_pairs,
        find_bounds.mean_square,
        find_bounds.padding,
        find_bounds.candidate_square,
        find_bounds.baseline_square,
        find_bounds.standard_error,
        case when half_width is not null then greatest(-1, padded_difference - half_width) end as low,
        case when half_width is not null then least(1, padded_difference + half_width) end as high,
        find_bounds.is_proportion,
        find_bounds.better_prompts,
        find_bounds.worse_prompts,
        find_bounds.error_pairs
    from find_bounds
    left join compare_scorers using (scorer)
)

select * from join_parts;

comment on macro table main.compare_runs is 'compare_runs(candidate, baseline, pair_by := ''auto''), two run ids: one row per scorer, with the scores compared prompt by prompt: difference, clustered standard error and 95% interval. pair_by is auto, prompt, id or row. baseline_repeats and candidate_repeats are lists of run ids that count like the baseline and the candidate. The table comparison has the tests and verdicts that were made.';
