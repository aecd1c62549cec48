-- Grain: one row per task × pair of its runs.
--
-- `entries` is a list of {task, run_id, scorer}: the rows of find_board without an obstacle. All pairs of a task's runs
-- are compared as compare_runs does it, prompt by prompt; all pairs of all tasks are one family of tests.
--
-- task: the task.
-- candidate: one run.
-- baseline: the other, which comes after it in `entries`.
-- prompts: pairs of prompt rows; see compare_runs.
-- candidate_mean: mean score of the candidate.
-- baseline_mean: mean score of the baseline over the pairs, each prompt row counting once.
-- difference: candidate_mean − baseline_mean.
-- standard_error: of the difference, clustered by prompt.
-- low: lower end of the 95% interval of this pair alone.
-- high: upper end.
-- better_prompts: pairs in which the candidate scored higher.
-- worse_prompts: pairs in which it scored lower.
-- p_value: that of compare_runs; with mcnemar_p the p of McNemar's exact test, which keeps its level in a family
--     however many pairs there are. NULL for fewer than five clusters.
-- holm_p: p_value adjusted for the number of pairs, by Holm's step-down; pairs without one count, too. NULL without
--     p_value.
-- verdict: too_few: no p_value; better, worse: holm_p is at most 0.05; unclear: otherwise.
create or replace macro internal.compare_board(entries) as table
with

list_entries as (
    select
        unnest(entries::struct(task varchar, run_id varchar, scorer varchar)[], recursive := true),
        generate_subscripts(entries, 1) as place
),

list_pairs as materialized (
    select
        one.task,
        one.scorer as asked_scorer,
        one.run_id as first_run,
        other.run_id as second_run
    from list_entries as one
    join list_entries as other on other.task = one.task and other.place > one.place
),

compare_pairs as (
    select
        list_pairs.task,
        list_pairs.first_run,
        list_pairs.second_run,
        compared.*
    from list_pairs
    left join lateral (
        from main.compare_runs(list_pairs.first_run, list_pairs.second_run, pair_by := 'prompt')
    ) as compared
        on compared.scorer = list_pairs.asked_scorer
),

-- The mid-p value and the other half of the probability of the split.
take_exact_tests as (
    select
        * replace (
            case
                when p_value is not null and mcnemar_p is not null
                then least(1, p_value + exp(
                    lgamma(better_prompts + worse_prompts + 1) - lgamma(better_prompts + 1) - lgamma(worse_prompts + 1)
                    - (better_prompts + worse_prompts) * ln(2)
                ))
                else p_value
            end as p_value
        )
    from compare_pairs
),

-- Holm: the i-th smallest of m p-values × (m − i + 1), at most 1 and not below that of a smaller one.
scale_tests as (
    select
        *,
        least(1, p_value * (
            count(*) over () - row_number() over (order by p_value nulls last, task, first_run, second_run) + 1
        )) as scaled_p
    from take_exact_tests
),

adjust_tests as (
    select *, max(scaled_p) over (order by p_value nulls last, task, first_run, second_run) as adjusted_p
    from scale_tests
),

judge_pairs as (
    select
        task,
        first_run as candidate,
        second_run as baseline,
        prompts,
        candidate_mean,
        baseline_mean,
        difference,
        standard_error,
        low,
        high,
        better_prompts,
        worse_prompts,
        p_value,
        case when p_value is not null then adjusted_p end as holm_p,
        case
            when p_value is null then 'too_few'
            when adjusted_p > 0.05 then 'unclear'
            when difference > 0 then 'better'
            else 'worse'
        end as verdict
    from adjust_tests
    order by task, candidate_mean desc, baseline_mean desc, candidate, baseline
)

select * from judge_pairs;

comment on macro table internal.compare_board is 'compare_board(entries), a list of {task, run_id, scorer}: one row per pair of runs of a task, compared prompt by prompt, with p-values adjusted by Holm''s step-down for all pairs of all tasks. better and worse are wrong on at most one board in twenty.';
