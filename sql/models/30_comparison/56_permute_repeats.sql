-- Grain: one row per metric with five or more values on either side.
--
-- Both arguments are lists of run ids.
--
-- metric: the metric, as in run_metric.
-- p_value: exact two-sided permutation test of the difference of means: the share of all ways to assign the values to
--     the sides whose difference is at least as large.
-- end_rank: where the 95% interval of the shift ends, counted from either end of the ranked differences between the
--     sides: u + 1, u the largest with P(U ≤ u) ≤ 0.025 for the statistic U of Mann and Whitney.
create or replace macro internal.permute_repeats(candidate_runs, baseline_runs) as table
with

read_values as materialized (
    select
        *,
        count(*) over (partition by metric) as n,
        count(*) filter (is_candidate) over (partition by metric) as candidate_repeats,
        avg(value) over (partition by metric) as mean
    from internal.line_up_repeats(candidate_runs, baseline_runs)
),

-- Around the mean of all, the difference of the sides' means grows with the candidate's sum alone.
center_values as (
    select
        metric,
        is_candidate,
        position,
        (position - 1) % 2 as half,
        (position - 1) // 2 as bit,
        value - mean as centered,
        candidate_repeats
    from read_values
    where candidate_repeats >= 5 and n - candidate_repeats >= 5
),

sum_observed as (
    select
        metric,
        any_value(candidate_repeats) as candidate_repeats,
        abs(sum(centered) filter (is_candidate)) as observed_sum,
        -- Tolerance for rounding: sums this close count as equal.
        1e-9 * max(abs(centered)) as tolerance
    from center_values
    group by metric
),

-- All assignments of up to 20 values, ten a side: the subsets of one half, joined to those of the other.
list_halves as (
    select metric, half, unnest(range(cast(1 << count(*) as bigint))) as mask
    from center_values
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

find_p_values as (
    select metric, count(*) filter (is_extreme) / count(*) as p_value
    from assign_all
    group by metric
),

-- Positions are ranks in no order: over all assignments their sum is spread as U is if nothing differs.
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
),

join_ranks as (
    select metric, find_p_values.p_value, find_ranks.end_rank
    from find_p_values
    join find_ranks using (metric)
)

select * from join_ranks;

comment on macro table internal.permute_repeats is 'permute_repeats(candidate_runs, baseline_runs), two lists of run ids: one row per metric, the exact permutation test and the rank at which the interval of the shift ends. compare_repeats has it with all the rest.';
