-- Grain: one row per judge or panel of list_judgements × ballot × word of its verdicts.
--
-- `run_ids` is a list of run ids of judges. Input of `audit_judge` in `assayline/stats/judges.py`.
--
-- judge_index: as in list_judgements.
-- ballot: number of the verdict that is compared with a label: that of a request, or in a panel that of all requests on
--     one answer in one order.
-- shown: number of the judged answer, or of the pair in one order.
-- pair: number of the judged answer, or of the pair in either order, with the judge's repeat.
-- cluster: see list_judgements.
-- category: the verdict as one of unordered words.
-- votes: verdicts with this word.
-- total: sum of their values.
-- squares: sum of the squares of their values.
-- label_category: the label, as category. Empty without one.
-- label_value: the label as a number, 0 to 1. NaN without one.
-- first: answer that was shown first, a or b. Empty without pairs.
-- longer: 1 if answer a has more characters than answer b, −1 if fewer, else 0.
-- has_scale: see list_judgements.
create or replace macro internal.count_votes(run_ids) as table
with

group_verdicts as (
    select
        judge_index,
        ballot,
        shown,
        answer,
        repeat_index,
        cluster,
        category,
        count(*) as votes,
        sum(value) as total,
        sum(value ** 2) as squares,
        any_value(label_category) as label_category,
        any_value(label_value) as label_value,
        any_value(first) as first,
        any_value(longer) as longer,
        any_value(has_scale) as has_scale
    from internal.list_judgements(run_ids)
    where status = 'judged'
    group by judge_index, ballot, shown, answer, repeat_index, cluster, category
),

number_keys as (
    select
        judge_index,
        dense_rank() over (order by ballot) as ballot,
        dense_rank() over (order by shown) as shown,
        dense_rank() over (order by answer, repeat_index) as pair,
        dense_rank() over (order by cluster) as cluster,
        category,
        votes,
        total,
        squares,
        coalesce(label_category, '') as label_category,
        coalesce(label_value, 'nan') as label_value,
        coalesce(first, '') as first,
        cast(coalesce(longer, 0) as integer) as longer,
        has_scale
    from group_verdicts
)

select * from number_keys;

comment on macro table internal.count_votes is 'count_votes(run_ids), a list of run ids of judges: one row per judge or panel × ballot × word, with its verdicts. The audit of judges is computed from it.';
