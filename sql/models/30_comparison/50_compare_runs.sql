-- Grain: one row per scorer of either run.
--
-- `pair_by` is prompt, id or row, or auto, which chooses one of them; see overlap_prompts.
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
-- standard_error: of the difference, clustered by prompt_id, that of the run with fewer of them: sqrt(G / (G − 1) × Σ
--     over prompt ids of (Σ of (d − difference) in it)²) / prompts. Where no prompt occurs twice it is that of the
--     paired t-test. NULL for fewer than two prompt ids.
-- low: lower end of the 95% interval: difference − t × standard_error, t with G − 1 degrees of freedom. NULL for fewer
--     than five prompt ids, too few for an interval.
-- high: upper end, with + t × standard_error.
-- better_prompts: pairs in which the candidate scored higher.
-- worse_prompts: pairs in which it scored lower.
-- mcnemar_p: exact two-sided test of McNemar: of n = better + worse pairs, the probability under Binomial(n, 1/2) of a
--     split as uneven as this one or more. 1 if n is 0. NULL if a score is neither 0 nor 1, or a prompt occurs
--     twice, which is not independent evidence.
-- p_value: two-sided p of that t-test, at least the smallest possible with G prompt ids, 2^(1 − G), as if the
--     signs of their differences were flipped; and at least mcnemar_p, if there is one. 1 if no prompt row
--     differs. NULL for fewer than five prompt ids.
-- error_pairs: pairs in which a sample of either run is an error, which scores 0 whatever the model can do.
-- candidate_errors: requests of the candidate with an error.
-- baseline_errors: requests of the baseline with an error.
-- verdict: other_scorer: same_scorer is false, so that a difference may be the scorer's; too_few: no interval; worse,
--     better: the interval leaves out 0 and mcnemar_p, if there is one, is below 0.05; same: no prompt row differs;
--     unclear: otherwise.
create or replace macro main.compare_runs(candidate, baseline, pair_by := 'auto') as table
with

pair_scores as (
    select * from internal.pair_prompts(candidate, baseline, pair_by := pair_by)
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
        bool_and(candidate_value in (0, 1) and baseline_value in (0, 1)) filter (difference is not null)
            and max(greatest(occurrence, baseline_occurrence)) filter (difference is not null) = 0 as is_binary,
        count(distinct baseline_prompt_id) filter (difference is not null)
            < count(distinct prompt_id) filter (difference is not null) as has_fewer_in_baseline
    from pair_scores
    group by scorer
),

add_clusters as (
    select
        scorer,
        case
            when count_pairs.has_fewer_in_baseline then pair_scores.baseline_prompt_id
            else pair_scores.prompt_id
        end as cluster,
        sum(pair_scores.difference - count_pairs.difference) as deviation
    from pair_scores
    join count_pairs using (scorer)
    where pair_scores.difference is not null
    group by scorer, cluster
),

spread_differences as (
    select
        scorer,
        count(*) as clusters,
        sqrt(sum(deviation ** 2) * clusters / nullif(clusters - 1, 0)) as root
    from add_clusters
    group by scorer
),

list_tails as (
    select
        scorer,
        better_prompts + worse_prompts as n,
        unnest(range(0, least(better_prompts, worse_prompts) + 1)) as k
    from count_pairs
    where is_binary
),

-- In logarithms, as 2^n and the binomial coefficients overflow from some 1,030 discordant pairs on.
add_tails as (
    select
        scorer,
        least(1, 2 * sum(exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * ln(2)))) as mcnemar_p
    from list_tails
    group by scorer
),

count_errors as (
    select
        count(*) filter (run_id = candidate) as candidate_errors,
        count(*) filter (run_id = baseline) as baseline_errors
    from internal.one_answer
    where run_id in (candidate, baseline) and error_kind <> 'not_sent'
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
        count_pairs.scorer,
        compare_scorers.same_scorer,
        count_pairs.paired_by,
        count_pairs.prompts,
        count_pairs.only_candidate,
        count_pairs.only_baseline,
        prompts / (prompts + only_candidate + only_baseline) as overlap_share,
        count_pairs.candidate_mean,
        count_pairs.baseline_mean,
        count_pairs.difference,
        spread_differences.root / prompts as standard_error,
        case when clusters >= 5 then difference - internal.t_quantile(clusters - 1) * standard_error end as low,
        case when clusters >= 5 then difference + internal.t_quantile(clusters - 1) * standard_error end as high,
        count_pairs.better_prompts,
        count_pairs.worse_prompts,
        add_tails.mcnemar_p,
        case
            when coalesce(clusters, 0) < 5 then null
            when better_prompts + worse_prompts = 0 then 1
            else greatest(
                case
                    when standard_error = 0 then 0
                    else internal.t_tail(difference / nullif(standard_error, 0), clusters - 1)
                end,
                2.0 ** (1 - clusters),
                coalesce(mcnemar_p, 0)
            )
        end as p_value,
        count_pairs.error_pairs,
        count_errors.candidate_errors,
        count_errors.baseline_errors,
        case
            when not same_scorer then 'other_scorer'
            when low is null then 'too_few'
            when better_prompts + worse_prompts = 0 then 'same'
            when high < 0 and coalesce(mcnemar_p, 0) < 0.05 then 'worse'
            when low > 0 and coalesce(mcnemar_p, 0) < 0.05 then 'better'
            else 'unclear'
        end as verdict
    from count_pairs
    cross join count_errors
    left join spread_differences using (scorer)
    left join add_tails using (scorer)
    left join compare_scorers using (scorer)
)

select * from join_parts;

comment on macro table main.compare_runs is 'compare_runs(candidate, baseline, pair_by := ''auto''), two run ids: one row per scorer, with the scores compared prompt by prompt: difference, standard error clustered by prompt, 95% interval, exact test of McNemar. pair_by is auto, prompt, id or row.';
