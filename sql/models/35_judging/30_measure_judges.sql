-- Grain: one row per judge or panel of list_judgements × measure that is defined.
--
-- A measure is the mean of a number x over its cases, and its standard error is clustered by judged prompt, as in
-- accuracy. A case is a ballot, an answer or a pair. For shares x is 0 or 1; for kappa and the corrected share, x is
-- the case's influence on the measure, so that one formula also serves repeats (the delta method).
--
-- judge_index: as in list_judgements.
-- measure: the measure; audit_judge explains each.
-- samples: its cases.
-- value: the measure.
-- standard_error: its standard error, clustered by judged prompt. NULL for fewer than two prompts.
-- low: lower end of the 95% interval: mean_interval for shares, otherwise value ± t × standard_error, cut to the range
--     of the measure. For corrected_share, 1 / labelled² is added to the variance, as if one more label differed from
--     its verdict: a few labels without an error do not prove that there is none (after Agresti and Min 2005).
--     NULL for fewer than five prompts (for corrected_share: labelled prompts), or a kappa without variance.
-- high: upper end.
create or replace macro internal.measure_judges(run_ids) as table
with

read_judged as materialized (
    select * from internal.list_judgements(run_ids) where status = 'judged'
),

count_votes as (
    select
        judge_index,
        ballot,
        category,
        count(*) as votes,
        avg(value) as category_value,
        sum(value) as total,
        any_value(cluster) as cluster,
        any_value(first) as first,
        any_value(answer) as answer,
        any_value(repeat_index) as repeat_index,
        any_value(label_value) as label_value,
        any_value(label_category) as label_category,
        any_value(has_scale) as has_scale,
        any_value(longer) as longer
    from read_judged
    group by judge_index, ballot, category
),

-- The word of a panel is that of most verdicts; of equally frequent words, that of the lowest value.
combine_votes as materialized (
    select
        judge_index,
        ballot,
        arg_min(category, {'fewest': -votes, 'value': category_value, 'word': category}) as category,
        sum(total) / sum(votes) as value,
        any_value(columns(* exclude (judge_index, ballot, category, votes, category_value, total)))
    from count_votes
    group by judge_index, ballot
),

count_categories as (
    select judge_index, category, 1 as verdicts, 0 as labels from combine_votes where label_value is not null
    union all
    select judge_index, label_category, 0, 1 from combine_votes where label_value is not null
),

share_categories as (
    select
        judge_index,
        category,
        sum(verdicts) / sum(sum(verdicts)) over (partition by judge_index) as verdict_share,
        sum(labels) / sum(sum(labels)) over (partition by judge_index) as label_share
    from count_categories
    group by judge_index, category
),

expect_agreement as (
    select judge_index, sum(verdict_share * label_share) as expected
    from share_categories
    group by judge_index
),

sum_moments as (
    select
        judge_index,
        count(*) as labelled,
        count(distinct cluster) as labelled_prompts,
        count(distinct label_category) > 1 as has_varied_labels,
        avg(cast(category = label_category as integer)) as observed,
        avg(value) as verdict_mean,
        avg(value ** 2) as verdict_square,
        avg(label_value) as label_mean,
        avg(label_value ** 2) as label_square,
        1 - avg((value - label_value) ** 2) as weighted_observed,
        avg(label_value - value) as correction
    from combine_votes
    where label_value is not null
    group by judge_index
),

-- Two weights of agreement: 1 for equal words, and 1 − (difference of values)² on scales.
weigh_agreement as (
    select
        combine_votes.judge_index,
        cluster,
        'kappa' as measure,
        cast(combine_votes.category = combine_votes.label_category as integer) as weight,
        observed,
        expected,
        of_verdict.label_share + of_label.verdict_share as chance
    from combine_votes
    join sum_moments using (judge_index)
    join expect_agreement using (judge_index)
    join share_categories as of_verdict
        on of_verdict.judge_index = combine_votes.judge_index
        and of_verdict.category = combine_votes.category
    join share_categories as of_label
        on of_label.judge_index = combine_votes.judge_index
        and of_label.category = combine_votes.label_category
    where label_value is not null and has_varied_labels
    union all
    select
        combine_votes.judge_index,
        cluster,
        'weighted_kappa',
        1 - (value - label_value) ** 2,
        weighted_observed,
        1 - (verdict_square - 2 * verdict_mean * label_mean + label_square),
        2 - (value ** 2 - 2 * value * label_mean + label_square)
            - (label_value ** 2 - 2 * label_value * verdict_mean + verdict_square)
    from combine_votes
    join sum_moments using (judge_index)
    where label_value is not null and has_varied_labels and has_scale
),

-- The mean influence is 0: 2 × expected is the mean of chance, and expected × observed is taken out.
find_influence as (
    select
        judge_index,
        measure,
        cluster,
        (observed - expected) / (1 - expected) + (
            weight * (1 - expected) - chance * (1 - observed)
            - (observed * expected - 2 * expected + observed)
        ) / (1 - expected) ** 2 as x
    from weigh_agreement
    where 1 - expected > 1e-12
),

-- NULL unless both orders of a pair are judged.
pair_orders as (
    select
        judge_index,
        any_value(cluster) as cluster,
        avg(value) filter (first = 'a') as first_value,
        avg(value) filter (first = 'b') as second_value
    from combine_votes
    where first is not null
    group by judge_index, answer, repeat_index
),

compare_repeats as (
    select judge_index, any_value(cluster) as cluster, count(distinct category) > 1 as has_flipped
    from read_judged
    group by judge_index, shown
    having count(*) > 1
),

list_cases as (
    select judge_index, measure, cluster, x from find_influence
    union all
    select judge_index, 'corrected_share', cluster, value + correction + case
        when label_value is null then 0
        else count(*) over (partition by judge_index) / labelled * (label_value - value - correction)
    end
    from combine_votes
    join sum_moments using (judge_index)
    union all
    select judge_index, 'raw_share', cluster, value from combine_votes
    union all
    select judge_index, 'agreement', cluster, cast(category = label_category as integer)
    from combine_votes
    where label_value is not null
    union all
    select
        judge_index,
        case when label_value >= 0.5 then 'sensitivity' else 'specificity' end,
        cluster,
        cast((value >= 0.5) = (label_value >= 0.5) as integer)
    from combine_votes
    where label_value is not null
    union all
    select judge_index, 'flip_share', cluster, cast(has_flipped as integer) from compare_repeats
    union all
    select judge_index, 'position_bias', cluster, first_value - second_value
    from pair_orders
    where first_value is not null and second_value is not null
    union all
    select
        judge_index,
        'consistent_share',
        cluster,
        cast(sign(round(first_value - 0.5, 6)) = sign(round(second_value - 0.5, 6)) as integer)
    from pair_orders
    where first_value is not null and second_value is not null
    union all
    select judge_index, 'length_bias', cluster, (2 * value - 1) * longer from combine_votes where longer <> 0
),

add_prompts as (
    select
        judge_index,
        measure,
        cluster,
        count(*) as samples,
        sum(x) as total,
        sum(x ** 2) as squares,
        count(*) filter (x not in (0, 1)) as partial_samples
    from list_cases
    group by judge_index, measure, cluster
),

average_prompts as (
    select
        *,
        sum(total) over (partition by judge_index, measure) / sum(samples) over (partition by judge_index, measure)
            as mean
    from add_prompts
),

sum_deviations as (
    select
        judge_index,
        measure,
        cast(sum(samples) as bigint) as samples,
        measure like '%kappa' or measure like '%bias' as is_signed,
        sum(partial_samples) = 0 and not is_signed and measure <> 'corrected_share' as is_binary,
        count(*) as clusters,
        any_value(mean) as mean,
        sum((total - samples * mean) ** 2) as clustered_squares,
        greatest(0, sum(squares - 2 * mean * total + samples * mean ** 2)) as plain_squares
    from average_prompts
    group by judge_index, measure
),

find_errors as (
    select
        sum_deviations.*,
        case
            when clusters > 1 then sqrt(clustered_squares * clusters / (clusters - 1)) / samples
        end as standard_error,
        case when measure = 'corrected_share' then labelled_prompts else clusters end as informative,
        case
            when measure = 'corrected_share' then sqrt(standard_error ** 2 + 1 / labelled ** 2)
            when measure not like '%kappa' or standard_error > 1e-12 then standard_error
        end as wide_error
    from sum_deviations
    left join sum_moments using (judge_index)
),

find_intervals as (
    select
        *,
        case
            when is_binary then internal.mean_interval(
                mean,
                true,
                samples,
                internal.effective_samples(samples, clusters, mean, plain_squares, clustered_squares),
                standard_error,
                clusters
            )
            when informative >= 5 then {
                'kind': 't',
                'low': mean - internal.t_quantile(informative - 1) * wide_error,
                'high': mean + internal.t_quantile(informative - 1) * wide_error
            }
        end as bounds,
        case when is_signed then -1 else 0 end as least_value
    from find_errors
),

cut_ends as (
    select
        judge_index,
        measure,
        samples,
        cast(greatest(least_value, least(1, mean)) as double) as value,
        standard_error,
        case when bounds.low is not null then greatest(least_value, least(1, bounds.low)) end as low,
        case when bounds.high is not null then greatest(least_value, least(1, bounds.high)) end as high
    from find_intervals
)

select * from cut_ends;

comment on macro table internal.measure_judges is 'measure_judges(run_ids), a list of run ids of judges: one row per judge or panel and measure, with its clustered standard error and 95% interval. Input of audit_judge.';
