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

-- Texts and scores below each other, one per run and place.
list_answers as (
    select false as is_score, run_id, prompt_id, occurrence, [repeat_index, turn_index] as place,
        arg_min(coalesce(error_kind, text), error_kind is not null) as answer
    from raw.requests
    join raw.completions using (run_id, request_id)
    where list_contains(run_ids, run_id) and option_index is null
    group by all
    union all
    select true, run_id, prompt_id, occurrence, [repeat_index], cast(value as varchar)
    from raw.scores
    where (run_id, scorer) in (
        select (run_id, arg_min(scorer, (ordinal, scorer)))
        from raw.scorers
        where list_contains(run_ids, run_id)
        group by run_id
    )
),

count_answers as (
    select is_score, prompt_id, occurrence, place, count(*) as runs
    from list_answers
    where answer is not null
    group by is_score, prompt_id, occurrence, place, answer
),

compare_answers as (
    select is_score, prompt_id, occurrence, sum(runs) as runs, sum(runs) ** 2 - sum(runs ** 2) as flips,
        sum(runs) * (sum(runs) - 1) as pairs
    from count_answers
    group by is_score, prompt_id, occurrence, place
)

select
    prompt_id,
    occurrence,
    cast(coalesce(max(runs) filter (not is_score), max(runs)) as bigint) as runs,
    sum(flips) filter (not is_score) / nullif(sum(pairs) filter (not is_score), 0) as flip_share,
    sum(flips) filter (is_score) / nullif(sum(pairs) filter (is_score), 0) as score_flip_share
from compare_answers
group by prompt_id, occurrence;

comment on macro table internal.noise_prompt is 'noise_prompt(run_ids), a list of ids of equal runs, such as those of a noise measurement in noise_run: one row per prompt row, with the share of pairs of runs whose answers or scores differ.';
