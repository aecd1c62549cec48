-- Grain: one row per task × run of it.
--
-- `entries` is as compare_board takes it.
--
-- task: the task.
-- run_id: the run.
-- best_rank: 1 + the number of runs that are better by more than chance.
-- worst_rank: the number of the task's runs − those that are worse by more than chance. As all pairs are one family of
--     tests, all true ranks of the board lie within these intervals at once, on 19 of 20 boards (Mogstad, Romano,
--     Shaikh and Wilhelm 2024).
-- is_winner: whether it is better than every other run of its task: its rank is 1, and no other's is.
create or replace macro internal.rank_board(entries) as table
with

compare_pairs as materialized (
    select * from internal.compare_board(entries)
),

list_sides as (
    select task, candidate as run_id, verdict = 'better' as is_above, verdict = 'worse' as is_below
    from compare_pairs
    union all
    select task, baseline, verdict = 'worse', verdict = 'better'
    from compare_pairs
),

count_sides as (
    select
        task,
        run_id,
        1 + count(*) filter (is_below) as best_rank,
        1 + count(*) - count(*) filter (is_above) as worst_rank,
        bool_and(is_above) as is_winner
    from list_sides
    group by task, run_id
    order by task, best_rank, worst_rank, run_id
)

select * from count_sides;

comment on macro table internal.rank_board is 'rank_board(entries), a list of {task, run_id, scorer}: one row per run of a task that has another one, with its rank as an interval: 1 to 3 if the data cannot separate the first three.';
