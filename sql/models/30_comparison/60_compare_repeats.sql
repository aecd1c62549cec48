-- Grain: one row per metric of run_metric that both sides have a value for, in one unit.
--
-- Both arguments are lists of run ids: the repeats of two configurations, of which the newest ten with a value count.
-- `limits` maps metrics to the smallest relative change that matters; they are one family of tests. `other_limit` is
-- that change for all other metrics. `nights`: above 1, the repeats are nights in their order, judged every night over
-- a period of that many. Then neighbors may be correlated, and a verdict needs the evidence of the whole period.
--
-- metric: the metric, as in run_metric.
-- unit: its unit.
-- higher_is_better: as in run_metric.
-- candidate_repeats: runs of the candidate that count.
-- baseline_repeats: runs of the baseline that count.
-- candidate_median: median over the candidate's repeats.
-- candidate_lowest: their lowest value.
-- candidate_highest: their highest value.
-- baseline_median: median over the baseline's repeats.
-- baseline_lowest: their lowest value.
-- baseline_highest: their highest value.
-- shift: by how much the candidate is higher, as Hodges and Lehmann estimate it: the median of all differences between
--     a repeat of the candidate and one of the baseline.
-- shift_low: lower end of an interval for the shift with at least 95% confidence: the (u + 1)-th smallest of those
--     differences, u the largest with P(U ≤ u) ≤ 0.025 for the statistic U of Mann and Whitney. NULL for fewer than
--     five repeats on a side.
-- shift_high: upper end, the (u + 1)-th largest.
-- relative_shift: shift / |baseline_median|. NULL if that is 0.
-- ratio: the candidate's value over the baseline's: the median of all ratios of a repeat of the candidate to one of the
--     baseline, estimated as the shift is, of logarithms. NULL if a value is not above 0.
-- ratio_low: lower end of its interval, by the same rank as shift_low: never below 0.
-- ratio_high: upper end.
-- worsening_share: relative_shift counted so that more is worse: its negative if higher is better.
-- minimum_effect: the smallest relative change that matters.
-- p_value: exact two-sided permutation test of the difference of means: the share of all ways to assign the values to
--     the sides whose difference is at least as large. NULL for fewer than five repeats on a side: the smallest
--     possible p is 0.008 at five and five, and 0.029 at four and four.
--     It is of means and the interval is of ranks, so that one may leave out 0 when the other is above 0.05.
--     Of nights, it is that of a t-test whose standard error counts n nights as n × (1 − correlation) / (1 +
--     correlation), and the interval is at least as wide as that of this test around the shift. The spread is that
--     around three means: of the baseline, and of the candidate before and after its best split into two or more nights
--     each. It has n − 5 degrees of freedom, as the split was chosen.
-- correlation: of neighboring nights, 0 to 0.95, around these means, with (1 + 3 × correlation) / n per mean added for
--     the bias of few nights (Marriott and Pope 1954, Kendall 1954). NULL unless the repeats are nights.
-- in_family: whether the metric is one of `limits`.
-- holm_p: p_value adjusted for the number of tests in the family, by Holm's step-down. NULL outside the family.
-- verdict: too_few: fewer than five repeats on a side; worse, better: p (holm_p in the family, p_value outside) is at
--     most 0.05, or 0.1 / nights for several nights, and the shift beyond minimum_effect; same: the interval of the
--     shift lies within ± minimum_effect; unclear: otherwise.
create or replace macro internal.compare_repeats(
    candidate_runs,
    baseline_runs,
    limits := map {'output_tokens_per_s': 0.05, 'tpot_p50_s': 0.1, 'e2e_p95_s': 0.1},
    other_limit := 0.02,
    nights := 1
) as table
with

read_values as materialized (
    select * from internal.line_up_repeats(candidate_runs, baseline_runs)
),

describe_sides as (
    select
        metric,
        any_value(unit) as unit,
        any_value(higher_is_better) as higher_is_better,
        count(*) filter (is_candidate) as candidate_repeats,
        count(*) filter (not is_candidate) as baseline_repeats,
        median(value) filter (is_candidate) as candidate_median,
        min(value) filter (is_candidate) as candidate_lowest,
        max(value) filter (is_candidate) as candidate_highest,
        median(value) filter (not is_candidate) as baseline_median,
        min(value) filter (not is_candidate) as baseline_lowest,
        max(value) filter (not is_candidate) as baseline_highest,
        least(candidate_repeats, baseline_repeats) >= 5 as is_testable,
        cast(coalesce(limits[metric], other_limit) as double) as minimum_effect,
        limits[metric] is not null as in_family
    from read_values
    group by metric
    having candidate_repeats > 0 and baseline_repeats > 0 and count(distinct unit) = 1
),

-- The nights of the candidate are split where that explains most. A fault may have begun among them; as a part of the
-- spread, it would hide itself until all of them have it.
list_splits as (
    select
        read_values.*,
        unnest(range(baseline_repeats + 3, baseline_repeats + candidate_repeats)) as split
    from read_values
    join describe_sides using (metric)
    where nights > 1 and is_testable
),

find_deviations as (
    select
        *,
        case when is_candidate then cast(position >= split as integer) else 2 end as stretch,
        value - avg(value) over (partition by metric, split, stretch) as deviation
    from list_splits
),

find_neighbors as (
    select *, lag(deviation) over (partition by metric, split, stretch order by position) as neighbor_deviation
    from find_deviations
),

correlate_nights as (
    select
        metric,
        split,
        count(*) as n,
        sum(deviation ** 2) as squares,
        sum(deviation * neighbor_deviation) / nullif(sum(deviation ** 2), 0) as found
    from find_neighbors
    group by metric, split
    qualify row_number() over (partition by metric order by squares, split) = 1
),

list_differences as (
    select
        metric,
        avg(candidate.value) - avg(baseline.value) as difference,
        median(candidate.value - baseline.value) as shift,
        list_sort(list(candidate.value - baseline.value)) as ranked,
        case
            when min(least(candidate.value, baseline.value)) > 0
                then list_sort(list(candidate.value / nullif(baseline.value, 0)))
        end as ranked_ratios
    from read_values as candidate
    join read_values as baseline using (metric)
    where candidate.is_candidate and not baseline.is_candidate
    group by metric
),

test_nights as (
    select
        metric,
        least(0.95, greatest(0, found + 3 * (1 + 3 * greatest(0, found)) / n)) as correlation,
        sqrt(
            squares / (n - 5)
            * (1 + correlation) / (1 - correlation)
            * (1 / candidate_repeats + 1 / baseline_repeats)
        ) as standard_error,
        internal.t_tail(difference / nullif(standard_error, 0), n - 5) as night_p,
        internal.t_quantile(n - 5) * standard_error as half_width
    from correlate_nights
    join describe_sides using (metric)
    join list_differences using (metric)
),

measure_shifts as (
    select
        describe_sides.*,
        case when nights > 1 then 0.1 / nights else 0.05 end as level,
        test_nights.correlation,
        coalesce(test_nights.night_p, permuted.p_value) as p_value,
        list_differences.shift,
        least(list_differences.ranked[permuted.end_rank], shift - test_nights.half_width) as shift_low,
        greatest(
            list_differences.ranked[len(list_differences.ranked) + 1 - permuted.end_rank],
            shift + test_nights.half_width
        ) as shift_high,
        list_differences.shift / nullif(abs(baseline_median), 0) as relative_shift,
        exp(list_median(list_transform(ranked_ratios, lambda ratio: ln(ratio)))) as ratio,
        ranked_ratios[permuted.end_rank] as ratio_low,
        ranked_ratios[len(ranked_ratios) + 1 - permuted.end_rank] as ratio_high,
        case when higher_is_better then -relative_shift else relative_shift end as worsening_share
    from describe_sides
    join list_differences using (metric)
    left join internal.permute_repeats(candidate_runs, baseline_runs) as permuted using (metric)
    left join test_nights using (metric)
),

-- Holm: the i-th smallest of m p-values × (m − i + 1), at most 1 and not below that of a smaller one.
scale_p_values as (
    select
        metric,
        p_value,
        least(1, p_value * (count(*) over () + 1 - row_number() over (order by p_value, metric))) as scaled_p
    from measure_shifts
    where in_family and p_value is not null
),

adjust_p_values as (
    select metric, max(scaled_p) over (order by p_value, metric) as holm_p
    from scale_p_values
),

judge_shifts as (
    select
        metric,
        unit,
        higher_is_better,
        candidate_repeats,
        baseline_repeats,
        candidate_median,
        candidate_lowest,
        candidate_highest,
        baseline_median,
        baseline_lowest,
        baseline_highest,
        shift,
        shift_low,
        shift_high,
        relative_shift,
        ratio,
        ratio_low,
        ratio_high,
        worsening_share,
        minimum_effect,
        p_value,
        correlation,
        in_family,
        holm_p,
        case
            when not is_testable then 'too_few'
            when coalesce(holm_p, p_value) <= level and worsening_share > minimum_effect then 'worse'
            when coalesce(holm_p, p_value) <= level and worsening_share < -minimum_effect then 'better'
            when greatest(abs(shift_low), abs(shift_high)) <= minimum_effect * abs(baseline_median) then 'same'
            else 'unclear'
        end as verdict
    from measure_shifts
    left join adjust_p_values using (metric)
    order by not in_family, metric
)

select * from judge_shifts;

comment on macro table internal.compare_repeats is 'compare_repeats(candidate_runs, baseline_runs), two lists of run ids, the repeats of two configurations: one row per metric, with shift, exact permutation test and verdict. nights := N judges nights over a period of N. limits (metric → smallest relative change that matters) names the metrics that are judged as one family by Holm''s step-down; other_limit is for the others, which are for reading: of twenty, one differs by chance.';
