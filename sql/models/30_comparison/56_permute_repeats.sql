-- Grain: one row per metric with five or more values on either side.
--
-- Both arguments are lists of run ids.
--
-- metric: the metric, as in run_metric.
-- p_value: exact two-sided permutation test of the difference of means: the share of all ways to assign the values to
--     the sides whose difference is at least as large.
-- p_method: exact: all assignments; drawn: 9,999 of them, drawn by a fixed seed, and the one observed, for more than 20
--     values in all.
-- end_rank: where the 95 % interval of the shift ends, counted from either end of the ranked differences between the
--     sides: u + 1, u the largest with P(U ≤ u) ≤ 0.025 for the statistic U of Mann and Whitney; exact up to 20 values
--     in all, from its normal approximation beyond.
create or replace macro permute_repeats(candidate_runs, baseline_runs) as table
with

read_values as materialized (
    select
        *,
        count(*) over (partition by metric) as n,
        count(*) filter (is_candidate) over (partition by metric) as candidate_repeats,
        avg(value) over (partition by metric) as mean
    from line_up_repeats(candidate_runs, baseline_runs)
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
        n,
        candidate_repeats
    from read_values
    where candidate_repeats >= 5 and n - candidate_repeats >= 5
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

join_ranks as (
    select metric, find_p_values.p_value, find_p_values.p_method, find_ranks.end_rank
    from find_p_values
    join find_ranks using (metric)
)

select * from join_ranks;

comment on macro table permute_repeats is 'permute_repeats(candidate_runs, baseline_runs), two lists of run ids: one row per metric, the exact permutation test and the rank at which the interval of the shift ends. compare_repeats has it with all the rest.';
