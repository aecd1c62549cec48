-- Grain: one row per pair of answers to one prompt that the given judges compared in both orders.
--
-- `run_ids` is a list of run ids of judges that compare pairs. A pair that was judged in one order only has no row.
-- Input of the fit of strengths in `assayline/stats/strengths.py`.
--
-- judged_run_id: the run of answer a.
-- other_run_id: the run of answer b.
-- cluster: see list_judgements.
-- value: the mean of both orders over all judges and repeats, so that a position bias cancels: 1 if a wins, 0 if b
--     does, ties counting half.
-- longer: 1 if answer a has more characters than answer b, −1 if fewer, else 0.
create or replace macro internal.list_comparisons(run_ids) as table
with

average_orders as (
    select
        judged_run_id,
        other_run_id,
        any_value(cluster) as cluster,
        (avg(value) filter (first = 'a') + avg(value) filter (first = 'b')) / 2 as value,
        cast(coalesce(any_value(longer), 0) as integer) as longer
    from internal.list_judgements(run_ids)
    where status = 'judged' and not is_panel and other_run_id <> judged_run_id
    group by judged_run_id, other_run_id, answer
    having value is not null
)

select * from average_orders;

comment on macro table internal.list_comparisons is 'list_comparisons(run_ids), a list of run ids of judges that compare pairs: one row per pair of answers judged in both orders, with the value of both and which is longer.';
