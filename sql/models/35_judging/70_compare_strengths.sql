-- Grain: one row per pair of judged runs.
--
-- `run_ids` is as fit_strengths takes it.
--
-- candidate: one run.
-- baseline: the other, which comes after it in the alphabet.
-- prompts: prompts with comparisons, of the run that has fewer.
-- difference: strength of the candidate − that of the baseline. NULL if the strengths are.
-- standard_error: of the difference, clustered by prompt.
-- low: lower end of the 95% interval of this pair alone, t with prompts − 1 degrees of freedom. NULL for fewer than
--     five prompts.
-- high: upper end.
-- p_value: two-sided p of the t-test. NULL without an interval.
-- holm_p: p_value adjusted for the number of pairs, by Holm's step-down. NULL without p_value.
-- verdict: too_few: no p_value; better, worse: holm_p is at most 0.05; unclear: otherwise.
create or replace macro internal.compare_strengths(run_ids) as table
with

read_strengths as materialized (
    select * from internal.fit_strengths(run_ids)
),

pair_runs as (
    select
        one.run_id as candidate,
        two.run_id as baseline,
        least(any_value(one.prompts), any_value(two.prompts)) as prompts,
        any_value(one.strength) - any_value(two.strength) as difference,
        sum((one.influence - two.influence) ** 2) as squares
    from read_strengths as one
    join read_strengths as two on two.run_id > one.run_id and two.cluster is not distinct from one.cluster
    group by one.run_id, two.run_id
),

test_pairs as (
    select
        *,
        sqrt(squares * prompts / nullif(prompts - 1, 0)) as standard_error,
        case when prompts >= 5 then internal.t_quantile(prompts - 1) * standard_error end as half,
        case
            when prompts >= 5 then internal.t_tail(difference / nullif(standard_error, 0), prompts - 1)
        end as p_value
    from pair_runs
),

-- Holm: the i-th smallest of m p-values × (m − i + 1), at most 1 and not below that of a smaller one.
scale_tests as (
    select
        *,
        least(1, p_value * (
            count(*) over () - row_number() over (order by p_value nulls last, candidate, baseline) + 1
        )) as scaled_p
    from test_pairs
),

adjust_tests as (
    select *, max(scaled_p) over (order by p_value nulls last, candidate, baseline) as adjusted_p
    from scale_tests
),

judge_pairs as (
    select
        candidate,
        baseline,
        prompts,
        difference,
        standard_error,
        difference - half as low,
        difference + half as high,
        p_value,
        case when p_value is not null then adjusted_p end as holm_p,
        case
            when p_value is null then 'too_few'
            when adjusted_p > 0.05 then 'unclear'
            when difference > 0 then 'better'
            else 'worse'
        end as verdict
    from adjust_tests
    order by candidate, baseline
)

select * from judge_pairs;

comment on macro table internal.compare_strengths is 'compare_strengths(run_ids), a list of run ids of judges that compare pairs: one row per pair of judged runs, with the difference of their strengths and p-values adjusted by Holm''s step-down for all pairs.';
