-- Grain: one row per task × model.
--
-- `names` is a list of run ids, names of specs, prompt sets and ids of benchmarks. Empty, it is all runs.
-- See find_board.
--
-- task: the prompt set as it was asked: same rows, settings and scorer; with a number from its second task on.
-- model: the model as the spec names it, with what else tells it from others.
-- run_id: the run whose score counts.
-- scorer: its first scorer.
-- mean: mean score, 0 to 1.
-- low: lower end of its 95% interval.
-- high: upper end.
-- prompts: different prompts that were scored.
-- best_rank: 1 + the number of models that are better by more than chance. NULL if it is not compared.
-- worst_rank: the number of models − those that are worse by more than chance; see rank_board.
-- is_winner: whether it is better than every other model of the task by more than chance.
-- obstacle: why its score is not compared. NULL if it is.
create or replace macro main.leaderboard(names) as table
with

list_cells as materialized (
    select * from internal.find_board(names)
),

join_ranks as (
    select
        list_cells.task,
        list_cells.model,
        list_cells.run_id,
        list_cells.scorer,
        list_cells.mean,
        list_cells.mean_low as low,
        list_cells.mean_high as high,
        list_cells.prompts,
        ranks.best_rank,
        ranks.worst_rank,
        coalesce(ranks.is_winner, false) as is_winner,
        list_cells.obstacle
    from list_cells
    left join internal.rank_board((
        select list({'task': task, 'run_id': run_id, 'scorer': scorer}) from list_cells where obstacle is null
    )) as ranks
        on ranks.task = list_cells.task and ranks.run_id = list_cells.run_id
    order by list_cells.task, list_cells.obstacle is not null, list_cells.mean desc, list_cells.model
)

select * from join_ranks;

comment on macro table main.leaderboard is 'leaderboard(names), a list of run ids, names of specs, prompt sets and ids of benchmarks, or []: one row per task and model, with score, 95% interval and rank as an interval: 1 to 3 if the data cannot separate the first three.';
