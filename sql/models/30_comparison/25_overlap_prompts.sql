-- Grain: one row per way to pair the prompt rows of two runs, always three.
--
-- pairing: prompt: the same prompt_id and occurrence; id: the same source_id and target; row: the same source_row and
--     target. Rows with one id count once.
-- prompts: prompt rows that both runs have.
-- only_candidate: prompt rows that only the candidate has. Without an id, or by row without a target, a row is one.
-- only_baseline: prompt rows that only the baseline has.
-- overlap_share: prompts / all prompt rows of either run, 0 to 1. NULL if there are none.
-- is_chosen: whether pair_by 'auto' pairs so: the first of prompt, id and row with an overlap_share of at least
--     `min_overlap`, else prompt; row only if both specs name the same prompts.source.
create or replace macro internal.overlap_prompts(candidate, baseline, min_overlap := 0.9) as table
with

list_pairings(place, pairing) as (
    values (1, 'prompt'), (2, 'id'), (3, 'row')
),

mark_sides as (
    select
        pairing,
        internal.pair_key(pairing, run_id, prompt_id, occurrence, source_id, source_row, target) as pair,
        bool_or(run_id = candidate) as in_candidate,
        bool_or(run_id = baseline) as in_baseline
    from raw.prompts
    cross join list_pairings
    where run_id in (candidate, baseline)
    group by all
),

count_sides as (
    select
        place,
        pairing,
        count(*) filter (in_candidate and in_baseline) as prompts,
        count(*) filter (not in_baseline) as only_candidate,
        count(*) filter (not in_candidate) as only_baseline,
        count(*) filter (in_candidate and in_baseline) / nullif(count(pair), 0) as overlap_share
    from list_pairings
    left join mark_sides using (pairing)
    group by place, pairing
),

compare_sources as (
    select count(distinct spec_json -> '$.prompts.source') < 2 as is_one_source
    from raw.runs
    where run_id in (candidate, baseline)
)

select
    pairing,
    prompts,
    only_candidate,
    only_baseline,
    overlap_share,
    pairing = coalesce(
        arg_min(pairing, place) filter (
            overlap_share >= min_overlap - 1e-12 and (pairing <> 'row' or is_one_source)
        ) over (),
        'prompt'
    ) as is_chosen
from count_sides
cross join compare_sources
order by place;

comment on macro table internal.overlap_prompts is 'overlap_prompts(candidate, baseline, min_overlap := 0.9), two run ids: one row per way to pair their prompt rows (by prompt, id or source row), with how many pair and which way a comparison takes by itself.';
