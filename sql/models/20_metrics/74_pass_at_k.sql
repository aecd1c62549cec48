-- Grain: one row per run × scorer × k.
create or replace view pass_at_k as
with

-- All prompt rows with as many samples and as many right ones are one row: C(n, k) is worked out once for them.
count_outcomes as (
    select
        run_id,
        scorer,
        samples,
        right_samples,
        count(*) as prompt_rows
    from prompt_score
    group by run_id, scorer, samples, right_samples
),

add_most_samples as (
    select *, max(samples) over (partition by run_id, scorer) as most_samples
    from count_outcomes
),

choose_k as (
    select
        *,
        unnest(list_distinct(list_filter(
            [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000, most_samples],
            lambda k: k <= samples
        ))) as k
    from add_most_samples
    where most_samples > 1
),

-- C(n − c, k) / C(n, k) from logarithms of factorials: the numbers themselves overflow for n in the hundreds.
estimate_prompts as (
    select
        *,
        case
            when samples - right_samples < k then 1
            else 1 - exp(
                lgamma(samples - right_samples + 1) - lgamma(samples - right_samples - k + 1)
                - (lgamma(samples + 1) - lgamma(samples - k + 1))
            )
        end as pass_chance
    from choose_k
),

average_runs as (
    select
        *,
        sum(prompt_rows) over (partition by run_id, scorer, k) as prompts,
        sum(prompt_rows * pass_chance) over (partition by run_id, scorer, k) / prompts as mean
    from estimate_prompts
),

sum_deviations as (
    select
        run_id,
        scorer,
        k,
        any_value(prompts) as prompts,
        any_value(mean) as mean,
        sum(prompt_rows * (pass_chance - mean) ** 2) as squares
    from average_runs
    group by run_id, scorer, k
),

judge_runs as (
    select
        run_id,
        scorer,
        k,
        cast(prompts as bigint) as prompts,
        mean,
        case when prompts > 1 then sqrt(squares / (prompts - 1) / prompts) end as standard_error
    from sum_deviations
)

select * from judge_runs;

comment on view pass_at_k is 'One row per run × scorer × k: the chance that of k samples of a prompt at least one is right, by the unbiased estimator of Chen et al. 2021, averaged over prompt rows. Runs whose prompts were asked once have no row.';
comment on column pass_at_k.run_id is 'The run.';
comment on column pass_at_k.scorer is 'The scorer, as in scorers. A score of 1 is right, any other is not.';
comment on column pass_at_k.k is 'How many samples there are to succeed: 1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100 and so on, and as many as there are.';
comment on column pass_at_k.prompts is 'Prompt rows with at least k samples.';
comment on column pass_at_k.mean is 'Mean over them of 1 − C(n − c, k) / C(n, k), for n samples of which c are right.';
comment on column pass_at_k.standard_error is 'Standard deviation over them / sqrt(prompts). NULL for one.';
