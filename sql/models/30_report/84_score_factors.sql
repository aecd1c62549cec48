-- Grain: one row per outcome (score, flip) × factor, and for worker and engine × name.
--
-- Does a score depend on the moment at which its answer was made? The arguments are those of list_moments.
--
-- The statistic is the sum of products of outcome and rank of the factor. Outcomes are exchanged within strata only, so
-- that hard prompts do not look like bad moments. A stratum is all prompts that have a reference, with the difference
-- from it as outcome. Prompts without one, and flips, are exchanged among forty neighbors in the order of sending;
-- cached_share, position and engine, which may go with the prompt, are not tested there. Ranks of preemptions are first
-- centered among answers of similar length, since long answers are preempted more often and may be wrong more often.
--
-- The null distribution is 199 permutations and the order as it is. All factors share them, and a p-value over all
-- factors compares with the largest statistic of each permutation (Westfall and Young 1993).
--
-- outcome: score, or flip: share of pairs of a prompt's answers that differ in text.
-- factor: in_flight, preemptions, cached_share, position, worker or engine (worker/engine_generation), as in
--     list_moments.
-- split: values that the next columns compare with all others: at least the mean rank, or the worker or engine.
-- split_prompts: prompts with these values.
-- split_mean: their mean outcome, 0 to 1, not adjusted for difficulty.
-- other_prompts: prompts with other values.
-- other_mean: their mean outcome.
-- z_value: the statistic over its root mean square in all permutations; positive if more of the factor goes with a
--     higher outcome.
-- p_value: share of permutations with a statistic of this size, for this factor alone.
-- adjusted_p: share of permutations in which any factor's statistic has this size.
-- is_named: whether adjusted_p is at most 0.02, and no other factor of the outcome has a larger statistic.
-- minimum_effect: difference in the mean outcome between split and others that is found in 80% of runs.
create or replace macro internal.score_factors(run, reference := null, asked_scorer := null) as table
with

read_moments as materialized (
    select
        *,
        row_number() over (order by position, prompt_id) as place,
        (rank() over (order by output_tokens) - 1) * least(50, 1 + count(*) over () // 20) // count(*) over ()
            as length_class
    from internal.list_moments(run, reference := reference, asked_scorer := asked_scorer)
),

stack_outcomes as materialized (
    select
        place,
        measured.outcome as outcome,
        measured.result as result,
        measured.result - coalesce(measured.control, 0) as deviation,
        case when measured.control is null then (place + 39) // 40 else 0 end as stratum
    from (
        select
            place,
            unnest([
                {'outcome': 'score', 'result': score, 'control': reference_score},
                {'outcome': 'flip', 'result': flip, 'control': null}
            ]) as measured
        from read_moments
    )
    where measured.result is not null
),

-- Engines only if a worker had several.
list_engines as (
    select factor, engine
    from (
        select 'worker' as factor, unnest(list_distinct(workers)) as engine from read_moments
        union all
        select 'engine', unnest(list_distinct(engines)) from read_moments
    )
    group by factor, engine
    having count(*) >= 20
    qualify factor = 'worker'
        or count(*) over (partition by factor) > count(*) filter (factor = 'worker') over ()
),

stack_factors as (
    select
        place,
        length_class,
        moment.factor as factor,
        moment.level as level,
        null as engine
    from (
        select
            place,
            length_class,
            unnest([
                {'factor': 'in_flight', 'level': in_flight},
                {'factor': 'preemptions', 'level': preemptions},
                {'factor': 'cached_share', 'level': cached_share},
                {'factor': 'position', 'level': position}
            ]) as moment
        from read_moments
    )
    union all
    select
        place,
        length_class,
        factor,
        len(list_filter(case factor when 'worker' then workers else engines end, lambda name: name = engine)) / answers
            as level,
        engine
    from read_moments
    cross join list_engines
),

rank_levels as (
    select
        *,
        case
            when level is not null
            then rank() over (partition by factor, engine order by level)
                + count(*) over (partition by factor, engine, level) / 2
        end as level_rank,
        case when factor = 'preemptions' then length_class end as class
    from stack_factors
),

center_classes as (
    select
        *,
        level_rank > avg(level_rank) over (partition by factor, engine) as is_split,
        level_rank - avg(level_rank) over (partition by factor, engine, class) as shift
    from rank_levels
),

center_strata as (
    select
        outcome,
        place,
        stratum,
        factor,
        engine,
        level,
        is_split,
        result,
        case
            when stratum > 0 and factor in ('cached_share', 'position', 'engine') then 0
            else coalesce(shift - avg(shift) over (partition by outcome, factor, engine, stratum), 0)
        end as x
    from stack_outcomes
    join center_classes using (place)
),

describe_splits as materialized (
    select
        outcome,
        factor,
        coalesce(
            engine,
            'at least ' || regexp_replace(printf('%.4g', min(level) filter (is_split)), '\.0+$', '')
        ) as split,
        count(*) filter (is_split) as split_prompts,
        avg(result) filter (is_split) as split_mean,
        count(*) filter (not is_split) as other_prompts,
        avg(result) filter (not is_split) as other_mean,
        sum(x) filter (is_split) as split_x,
        list(x order by stratum, place) as xs
    from center_strata
    group by outcome, factor, engine
    having split_prompts > 0 and other_prompts > 0 and sum(x ** 2) > 1e-9
),

-- Shuffled by a hash of place and turn, which is the same in every version of DuckDB. Turn 0 keeps the order.
permute_outcomes as (
    select outcome, turn, list(deviation order by stratum, case when turn = 0 then place else key end) as ys
    from (
        select *, xor(once, once >> 16) * 73244475 % 4294967296 as key
        from (
            select *, xor(seed, seed >> 16) * 73244475 % 4294967296 as once
            from (
                select *, cast(place * 200 + turn as ubigint) * 2654435761 % 4294967296 as seed
                from stack_outcomes
                cross join (select unnest(range(200)) as turn)
            )
        )
    )
    group by outcome, turn
),

scale_products as (
    select
        *,
        sqrt(avg(product ** 2) over (partition by outcome, factor, split)) as product_scale
    from (
        select outcome, factor, split, turn, list_dot_product(ys, xs) as product
        from permute_outcomes
        join describe_splits using (outcome)
    )
),

find_largest as (
    select
        *,
        product / product_scale as z,
        max(abs(product / product_scale)) over (partition by turn) as largest,
        max(product / product_scale) filter (turn = 0) over (partition by outcome, factor, split) as z_value
    from scale_products
    where product_scale > 1e-9
),

count_permutations as (
    select
        outcome,
        factor,
        split,
        any_value(z_value) as z_value,
        avg(cast(abs(z) >= abs(z_value) - 1e-9 as integer)) as p_value,
        avg(cast(largest >= abs(z_value) - 1e-9 as integer)) as adjusted_p,
        (quantile_cont(largest, 0.98) + 0.842) * any_value(product_scale) as minimum_product
    from find_largest
    group by outcome, factor, split
),

judge_factors as (
    select
        outcome,
        factor,
        split,
        split_prompts,
        split_mean,
        other_prompts,
        other_mean,
        z_value,
        p_value,
        adjusted_p,
        adjusted_p <= 0.02
            and row_number() over (partition by outcome order by abs(z_value) desc, factor, split) = 1 as is_named,
        minimum_product / split_x as minimum_effect
    from describe_splits
    join count_permutations using (outcome, factor, split)
)

select * from judge_factors;

comment on macro table internal.score_factors is 'score_factors(run, reference := null, asked_scorer := null): one row per outcome and factor: whether scores, or texts of repeated prompts, depend on requests in flight, preemptions, the cached share, the position, the worker or the engine, and the factor with the strongest evidence.';
