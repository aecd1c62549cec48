-- Grain: one row per prompt row of equal runs, given as a list of run ids.
--
-- prompt_id: the prompt.
-- occurrence: which of the run's rows with that prompt_id.
-- runs: runs with an answer to it.
-- flip_share: share of pairs of runs whose answers differ, as text. Repeats are compared by their number, and
--     conversations turn by turn; an error is an answer of its own. NULL without a pair of texts.
-- score_flip_share: share of pairs of runs whose scores by the first scorer differ. NULL without a pair of scores.
create or replace macro internal.noise_prompt(run_ids) as table
with

list_runs as (
    select distinct unnest(run_ids) as run_id
),

read_texts as (
    select
        requests.prompt_id,
        requests.occurrence,
        requests.repeat_index,
        requests.turn_index,
        run_id,
        arg_min(coalesce(completions.error_kind, completions.text), completions.error_kind is not null) as answer
    from list_runs
    join raw.requests using (run_id)
    join raw.completions using (run_id, request_id)
    where requests.option_index is null
    group by requests.prompt_id, requests.occurrence, requests.repeat_index, requests.turn_index, run_id
),

count_texts as (
    select prompt_id, occurrence, repeat_index, turn_index, answer, count(*) as runs
    from read_texts
    where answer is not null
    group by prompt_id, occurrence, repeat_index, turn_index, answer
),

compare_texts as (
    select prompt_id, occurrence, sum(runs) as runs, sum(runs) ** 2 - sum(runs ** 2) as flips
    from count_texts
    group by prompt_id, occurrence, repeat_index, turn_index
),

share_texts as (
    select
        prompt_id,
        occurrence,
        max(runs) as runs,
        sum(flips) / nullif(sum(runs * (runs - 1)), 0) as flip_share
    from compare_texts
    group by prompt_id, occurrence
),

read_scores as (
    select scores.prompt_id, scores.occurrence, scores.repeat_index, scores.value, count(*) as runs
    from list_runs
    join (
        select run_id, arg_min(scorer, (ordinal, scorer)) as scorer
        from raw.scorers
        group by run_id
    ) as first_scorers using (run_id)
    join raw.scores using (run_id, scorer)
    group by scores.prompt_id, scores.occurrence, scores.repeat_index, scores.value
),

compare_scores as (
    select prompt_id, occurrence, sum(runs) as runs, sum(runs) ** 2 - sum(runs ** 2) as flips
    from read_scores
    group by prompt_id, occurrence, repeat_index
),

share_scores as (
    select
        prompt_id,
        occurrence,
        max(runs) as runs,
        sum(flips) / nullif(sum(runs * (runs - 1)), 0) as score_flip_share
    from compare_scores
    group by prompt_id, occurrence
),

join_shares as (
    select
        prompt_id,
        occurrence,
        cast(coalesce(share_texts.runs, share_scores.runs) as bigint) as runs,
        share_texts.flip_share,
        share_scores.score_flip_share
    from share_texts
    full join share_scores using (prompt_id, occurrence)
)

select * from join_shares;

comment on macro table internal.noise_prompt is 'noise_prompt(run_ids), a list of ids of equal runs, such as those of a noise measurement in noise_run: one row per prompt row, with the share of pairs of runs whose answers or scores differ.';
