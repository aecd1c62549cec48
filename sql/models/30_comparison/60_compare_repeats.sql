-- Grain: one row per metric of run_metric that both sides have a value for.
--
-- Both arguments are lists of run ids: the repeats of two configurations. `limits` maps metrics to the smallest
-- relative change that matters; they are one family of tests. `other_limit` is that change for all other metrics.
--
-- metric: the metric, as in run_metric.
-- unit: its unit.
-- higher_is_better: as in run_metric.
-- candidate_repeats: runs of the candidate with a value.
-- baseline_repeats: runs of the baseline with a value.
-- candidate_median: median over the candidate's repeats.
-- candidate_lowest: their lowest value.
-- candidate_highest: their highest value.
-- baseline_median: median over the baseline's repeats.
-- baseline_lowest: their lowest value.
-- baseline_highest: their highest value.
-- shift: by how much the candidate is higher, as Hodges and Lehmann estimate it: the median of all differences between
--     a repeat of the candidate and one of the baseline.
-- shift_low: lower end of an interval for the shift with at least 95 % confidence: the (u + 1)-th smallest of those
--     differences, u the largest with P(U ≤ u) ≤ 0.025 for the statistic U of Mann and Whitney (exactly up to 20
--     repeats in all, from its normal approximation beyond). NULL for fewer than five repeats on a side.
-- shift_high: upper end, the (u + 1)-th largest.
-- relative_shift: shift / |baseline_median|. NULL where that is 0.
-- worsening_share: relative_shift counted so that more is worse: its negative where higher is better.
-- minimum_effect: the smallest relative change that matters.
-- p_value: exact two-sided permutation test of the difference of means: the share of all ways to assign the values to
--     the sides whose difference is at least as large. NULL for fewer than five repeats on a side: the smallest
--     possible p is 0.008 at five and five, and 0.029 at four and four.
-- p_method: exact: all assignments; drawn: 9,999 of them, drawn by a fixed seed, and the one observed, for more than 20
--     repeats in all.
-- in_family: whether the metric is one of `limits`.
-- holm_p: p_value adjusted for the number of tests in the family, by Holm's step-down. NULL outside the family.
-- verdict: too_few: fewer than five repeats on a side; worse, better: p (holm_p in the family, p_value outside) is at
--     most 0.05 and the shift beyond minimum_effect; same: the interval of the shift lies within ± minimum_effect;
--     unclear: all else.
create or replace macro compare_repeats(
    candidate_runs,
    baseline_runs,
    limits := map {'output_tokens_per_s': 0.05, 'tpot_p50_s': 0.1, 'e2e_p95_s': 0.1},
    other_limit := 0.02
) as table
with

list_sides as (
    select unnest(candidate_runs) as run_id, true as is_candidate
    union all
    select unnest(baseline_runs) as run_id, false as is_candidate
),

read_values as (
    select
        run_metric.metric,
        run_metric.unit,
        run_metric.higher_is_better,
        list_sides.is_candidate,
        run_metric.value,
        row_number() over (partition by run_metric.metric order by list_sides.is_candidate, run_id) as position
    from list_sides
    join run_metric using (run_id)
    where run_metric.value is not null
),

describe_sides as (
    select
        metric,
        any_value(unit) as unit,
        any_value(higher_is_better) as higher_is_better,
        count(*) as n,
        count(*) filter (is_candidate) as candidate_repeats,
        count(*) filter (not is_candidate) as baseline_repeats,
        median(value) filter (is_candidate) as candidate_median,
        min(value) filter (is_candidate) as candidate_lowest,
        max(value) filter (is_candidate) as candidate_highest,
        median(value) filter (not is_candidate) as baseline_median,
        min(value) filter (not is_candidate) as baseline_lowest,
        max(value) filter (not is_candidate) as baseline_highest,
        avg(value) as mean,
        max(value) - min(value) as spread,
        least(candidate_repeats, baseline_repeats) >= 5 as is_testable,
        cast(coalesce(limits[metric], other_limit) as double) as minimum_effect,
        limits[metric] is not null as in_family
    from read_values
    group by metric
    having candidate_repeats > 0 and baseline_repeats > 0
),

-- Around the mean of all, the difference of the sides' means grows with the candidate's sum alone.
center_values as (
    select
        read_values.metric,
        read_values.is_candidate,
        read_values.position,
        (read_values.position - 1) % 2 as half,
        (read_values.position - 1) // 2 as bit,
        read_values.value - describe_sides.mean as centered,
        describe_sides.n,
        describe_sides.candidate_repeats
    from read_values
    join describe_sides using (metric)
    where describe_sides.is_testable
),

sum_observed as (
    select
        metric,
        any_value(n) as n,
        any_value(candidate_repeats) as candidate_repeats,
        abs(sum(centered) filter (is_candidate)) as observed_sum,
        -- What rounding may make of equal sums: they count as equal.
        1e-9 * max(abs(centered)) as tolerance
    from center_values
    group by metric
),

-- All assignments of up to 20 values: the subsets of one half, joined to those of the other.
list_halves as (
    select metric, half, unnest(range(cast(1 << count(*) as bigint))) as mask
    from center_values
    where n <= 20
    group by metric, half
),

sum_halves as (
    select
        list_halves.metric,
        list_halves.half,
        list_halves.mask,
        bit_count(list_halves.mask) as chosen,
        coalesce(sum(centered) filter ((mask >> bit) & 1 = 1), 0) as chosen_sum,
        coalesce(sum(position) filter ((mask >> bit) & 1 = 1), 0) as chosen_positions
    from list_halves
    join center_values using (metric, half)
    group by list_halves.metric, list_halves.half, list_halves.mask
),

find_partners as materialized (
    select
        sum_halves.metric,
        sum_halves.chosen_sum,
        sum_halves.chosen_positions,
        sum_observed.candidate_repeats - sum_halves.chosen as wanted,
        sum_observed.observed_sum - sum_observed.tolerance as extreme_sum
    from sum_halves
    join sum_observed using (metric)
    where sum_halves.half = 0
),

assign_all as (
    select
        find_partners.metric,
        abs(find_partners.chosen_sum + sum_halves.chosen_sum) >= find_partners.extreme_sum as is_extreme,
        find_partners.chosen_positions + sum_halves.chosen_positions as positions
    from find_partners
    join sum_halves
        on sum_halves.metric = find_partners.metric
        and sum_halves.chosen = find_partners.wanted
        and sum_halves.half = 1
),

count_all as (
    select metric, 'exact' as p_method, count(*) filter (is_extreme) / count(*) as p_value
    from assign_all
    group by metric
),

-- More than 20 values: the same draws for all metrics with as many.
list_draws as (
    select n, candidate_repeats, unnest(range(1, 10000)) as draw
    from (select distinct n, candidate_repeats from sum_observed where n > 20)
),

draw_positions as (
    select n, candidate_repeats, draw, position
    from list_draws
    cross join lateral (select unnest(range(1, n + 1)) as position)
    qualify row_number() over (
        partition by n, candidate_repeats, draw
        order by hash(hash(hash(20261121, draw), position)), position
    ) <= candidate_repeats
),

sum_draws as (
    select metric, draw, sum(centered) as drawn_sum
    from draw_positions
    join center_values using (n, candidate_repeats, position)
    group by metric, draw
),

count_draws as (
    select
        metric,
        'drawn' as p_method,
        (1 + count(*) filter (abs(drawn_sum) >= observed_sum - tolerance)) / (1 + count(*)) as p_value
    from sum_draws
    join sum_observed using (metric)
    group by metric
),

find_p_values as (
    select * from count_all
    union all
    select * from count_draws
),

-- Positions are ranks in no order: over all assignments their sum is spread as U is where nothing differs.
count_ranks as (
    select metric, positions, count(*) as ways
    from assign_all
    group by metric, positions
),

add_ranks as (
    select
        metric,
        positions - min(positions) over (partition by metric) as u,
        sum(ways) over (partition by metric order by positions) / sum(ways) over (partition by metric) as probability
    from count_ranks
),

find_ranks as (
    select metric, cast(max(u) + 1 as bigint) as end_rank
    from add_ranks
    where probability <= 0.025
    group by metric

    union all

    select
        metric,
        greatest(1, cast(floor(
            candidate_repeats * (n - candidate_repeats) / 2
            - 1.959963984540054 * sqrt(candidate_repeats * (n - candidate_repeats) * (n + 1) / 12)
        ) as bigint)) as end_rank
    from sum_observed
    where n > 20
),

list_differences as (
    select
        metric,
        median(candidate.value - baseline.value) as shift,
        list_sort(list(candidate.value - baseline.value)) as ranked
    from read_values as candidate
    join read_values as baseline using (metric)
    where candidate.is_candidate and not baseline.is_candidate
    group by metric
),

measure_shifts as (
    select
        describe_sides.*,
        find_p_values.p_value,
        find_p_values.p_method,
        list_differences.shift,
        list_differences.ranked[find_ranks.end_rank] as shift_low,
        list_differences.ranked[len(list_differences.ranked) + 1 - find_ranks.end_rank] as shift_high,
        list_differences.shift / nullif(abs(baseline_median), 0) as relative_shift,
        case when higher_is_better then -relative_shift else relative_shift end as worsening_share
    from describe_sides
    join list_differences using (metric)
    left join find_p_values using (metric)
    left join find_ranks using (metric)
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
        worsening_share,
        minimum_effect,
        p_value,
        p_method,
        in_family,
        holm_p,
        case
            when not is_testable then 'too_few'
            when coalesce(holm_p, p_value) <= 0.05 and worsening_share > minimum_effect then 'worse'
            when coalesce(holm_p, p_value) <= 0.05 and worsening_share < -minimum_effect then 'better'
            when greatest(abs(shift_low), abs(shift_high)) <= minimum_effect * abs(baseline_median) then 'same'
            else 'unclear'
        end as verdict
    from measure_shifts
    left join adjust_p_values using (metric)
    order by not in_family, metric
)

select * from judge_shifts;

comment on macro table compare_repeats is 'compare_repeats(candidate_runs, baseline_runs), two lists of run ids, the repeats of two configurations: one row per metric, with shift, exact permutation test and verdict. limits (metric → smallest relative change that matters) names the metrics that are judged as one family by Holm''s step-down; other_limit is for the others, which are for reading: of twenty, one differs by chance.';
