-- Grain: one row per task × pair of its runs × cluster of prompt rows. Prompt rows that are the only one of their
-- cluster in the task are one row together.
--
-- `entries` is a list of {task, run_id, scorer}: the rows of find_board without an obstacle. Each side of a pair is the
-- mean over the repeats of a prompt row. Input of the tests and ranks in `assayline/stats/board.py`.
--
-- first: place of one run in `entries`, from 0.
-- second: place of the other, which comes after it.
-- is_single: whether these are rows that are alone in their cluster: their value of prompts.columns.cluster, else
--     their prompt_id.
-- prompts: prompt rows that both runs have a score for.
-- first_total: sum of the scores of the first.
-- second_total: sum of the scores of the second.
-- squares: sum of the squared differences, row by row.
-- largest: largest absolute difference.
-- better: rows in which the first scored higher.
-- worse: rows in which it scored lower.
-- is_binary: whether all scores are 0 or 1.
create or replace macro internal.pair_board(entries) as table
with

list_entries as (
    select
        unnest(entries::struct(task varchar, run_id varchar, scorer varchar)[], recursive := true),
        generate_subscripts(entries, 1) - 1 as place
),

average_samples as materialized (
    select task, place, any_value(run_id) as run_id, prompt_id, occurrence, avg(value) as value
    from raw.scores
    join list_entries using (run_id, scorer)
    group by task, place, prompt_id, occurrence
),

find_clusters as (
    select task, prompt_id, occurrence, coalesce(min(cluster), prompt_id) as cluster
    from average_samples
    left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
    group by task, prompt_id, occurrence
),

number_prompts as (
    select
        task,
        prompt_id,
        occurrence,
        row_number() over () as prompt,
        case when count(*) over (partition by task, cluster) > 1 then cluster end as shared_cluster
    from find_clusters
),

place_scores as materialized (
    select place, prompt, shared_cluster, value
    from average_samples
    join number_prompts using (task, prompt_id, occurrence)
),

add_pairs as (
    select
        one.place as first,
        other.place as second,
        one.shared_cluster is null as is_single,
        count(*) as prompts,
        sum(one.value) as first_total,
        sum(other.value) as second_total,
        sum((one.value - other.value) ** 2) as squares,
        max(abs(one.value - other.value)) as largest,
        count(*) filter (one.value > other.value) as better,
        count(*) filter (one.value < other.value) as worse,
        bool_and(one.value in (0, 1) and other.value in (0, 1)) as is_binary
    from place_scores as one
    join place_scores as other on other.prompt = one.prompt and other.place > one.place
    group by one.place, other.place, one.shared_cluster
)

select * from add_pairs;

comment on macro table internal.pair_board is 'pair_board(entries), a list of {task, run_id, scorer}: one row per pair of runs of a task and cluster of prompt rows, with the sums that tests of all pairs need.';
