-- Grain: one row per judged answer with at least one verdict by the given judges.
--
-- `run_ids` is a list of run ids of judges of one run; `how` is mean or majority.
--
-- prompt_id: prompt of the judged answer, with occurrence and repeat_index as in the judged run.
-- occurrence: see prompt_id.
-- repeat_index: see prompt_id.
-- value: its score, 0 to 1: the mean of the verdicts, or the most frequent one. If several are equally frequent,
--     their mean.
-- verdicts: the different verdicts, separated by commas.
-- reason: the reason of the first verdict, in the order of `run_ids`, among those nearest to value.
-- judgements: number of verdicts.
create or replace macro internal.combine_judgements(run_ids, how) as table
with

read_verdicts as (
    select
        judged_prompt_id as prompt_id,
        judged_occurrence as occurrence,
        judged_repeat_index as repeat_index,
        verdict,
        value,
        reason,
        concat_ws(
            ' ', lpad(cast(list_position(run_ids, judge_run_id) as varchar), 6, '0'), repeat_index, scorer
        ) as place,
        count(*) over (
            partition by judged_prompt_id, judged_occurrence, judged_repeat_index, judgement.value
        ) as votes
    from internal.find_judgements(run_ids) as judgement
    where status = 'judged'
),

find_most as (
    select *, max(votes) over (partition by prompt_id, occurrence, repeat_index) as most_votes
    from read_verdicts
),

combine_values as (
    select
        *,
        avg(value) filter (how = 'mean' or votes = most_votes) over (
            partition by prompt_id, occurrence, repeat_index
        ) as combined
    from find_most
),

join_verdicts as (
    select
        prompt_id,
        occurrence,
        repeat_index,
        any_value(combined) as value,
        string_agg(distinct verdict, ', ' order by verdict) as verdicts,
        arg_min(reason, concat_ws(' ', printf('%.6f', abs(value - combined)), place)) as reason,
        count(*) as judgements
    from combine_values
    group by prompt_id, occurrence, repeat_index
    order by prompt_id, occurrence, repeat_index
)

select * from join_verdicts;

comment on macro table internal.combine_judgements is 'combine_judgements(run_ids, how), a list of run ids of judges of one run and mean or majority: one row per judged answer, with the score that their verdicts give it.';
