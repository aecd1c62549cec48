-- Grain: one row, always: how much of two runs' prompt sets is the same.
--
-- prompts: prompt rows (prompt_id and occurrence) that both runs have.
-- only_candidate: prompt rows that only the candidate has.
-- only_baseline: prompt rows that only the baseline has.
-- overlap_share: prompts / all prompt rows of either run, 0 to 1. NULL where there are none.
create or replace macro overlap_prompts(candidate, baseline) as table
with

mark_sides as (
    select
        prompt_id,
        occurrence,
        bool_or(run_id = candidate) as in_candidate,
        bool_or(run_id = baseline) as in_baseline
    from prompts
    where run_id in (candidate, baseline)
    group by prompt_id, occurrence
),

count_sides as (
    select
        count(*) filter (in_candidate and in_baseline) as prompts,
        count(*) filter (not in_baseline) as only_candidate,
        count(*) filter (not in_candidate) as only_baseline,
        count(*) filter (in_candidate and in_baseline) / nullif(count(*), 0) as overlap_share
    from mark_sides
)

select * from count_sides;

comment on macro table overlap_prompts is 'overlap_prompts(candidate, baseline), two run ids: one row, how many prompt rows both were asked.';
