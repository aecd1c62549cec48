-- Grain: one row per eighth of a factor's values, or per worker or engine, for one outcome.
--
-- The first three arguments are those of list_moments. `asked_outcome` and `asked_factor` are as in score_factors. A
-- prompt with answers by several workers counts with the first. At most twelve rows, those with the most prompts.
--
-- name: the range of values, or the worker or engine.
-- prompts: prompts with these values.
-- mean: their mean outcome, 0 to 1, not adjusted for difficulty.
-- low: lower end of its 95% interval, as if the prompts were independent. NULL for a single one.
-- high: upper end.
create or replace macro internal.score_levels(run, reference, asked_scorer, asked_outcome, asked_factor) as table
with

read_levels as (
    select
        case asked_outcome when 'score' then score else flip end as result,
        case asked_factor
            when 'in_flight' then in_flight
            when 'preemptions' then preemptions
            when 'cached_share' then cached_share
            when 'position' then position
        end as level,
        case asked_factor when 'worker' then workers[1] when 'engine' then engines[1] end as engine
    from internal.list_moments(run, reference := reference, asked_scorer := asked_scorer)
),

rank_levels as (
    select
        *,
        (rank() over (order by level) - 1) * 8 // count(*) over () as eighth
    from read_levels
    where result is not null and coalesce(cast(level as varchar), engine) is not null
),

group_levels as (
    select
        coalesce(
            engine,
            case
                when min(level) = max(level) then printf('%.4g', min(level))
                else printf('%.4g to %.4g', min(level), max(level))
            end
        ) as name,
        eighth,
        count(*) as prompts,
        avg(result) as mean,
        stddev_samp(result) / sqrt(count(*)) as standard_error,
        bool_and(result in (0, 1)) as is_binary
    from rank_levels
    group by engine, eighth
    order by prompts desc, name
    limit 12
),

find_intervals as (
    select
        name,
        prompts,
        mean,
        bounds.low as low,
        bounds.high as high
    from (
        select *, internal.mean_interval(mean, is_binary, prompts, prompts, standard_error, prompts) as bounds
        from group_levels
    )
    order by eighth, name
)

select * from find_intervals;

comment on macro table internal.score_levels is 'score_levels(run, reference, asked_scorer, asked_outcome, asked_factor): one row per worker, engine or eighth of a factor''s values, with the mean score or flip of the prompts. score_factors tests whether they differ beyond chance.';
