-- Grain: one row per run.
create or replace view accuracy as
with

count_prompts as (
    select
        run_id,
        prompt_id,
        count(*) as requests,
        count(*) filter (is_correct) as correct_requests,
        count(*) filter (status = 'ok') as ok_requests
    from stg_requests
    where is_correct is not null
    group by run_id, prompt_id
),

-- Windows rather than a join of the averages: a filter on run_id reaches the requests through them.
average_runs as (
    select
        *,
        sum(requests) over (partition by run_id) as run_requests,
        sum(correct_requests) over (partition by run_id) / sum(requests) over (partition by run_id) as mean
    from count_prompts
),

-- clustered_squares: (sum of a prompt's deviations from the mean)², summed over prompts.
-- plain_squares: each request's deviation², summed over requests, which for 0 and 1 is n × mean × (1 − mean).
sum_deviations as (
    select
        run_id,
        sum(requests) as requests,
        sum(ok_requests) as ok_requests,
        sum(correct_requests) as correct_requests,
        count(*) as prompts,
        any_value(mean) as mean,
        sum((correct_requests - requests * mean) ** 2) as clustered_squares,
        any_value(run_requests * mean * (1 - mean)) as plain_squares
    from average_runs
    group by run_id
),

judge_runs as (
    select
        *,
        case
            when prompts > 1 then sqrt(clustered_squares * prompts / (prompts - 1)) / requests
        end as standard_error,
        case
            when prompts = requests then requests
            when prompts = 1 or mean in (0, 1) then prompts
            when clustered_squares = 0 then requests
            else least(requests, requests * plain_squares / clustered_squares)
        end as effective_requests
    from sum_deviations
),

center_intervals as (
    select
        *,
        1.959963984540054 ** 2 / effective_requests as z_squared_share,
        (mean + z_squared_share / 2) / (1 + z_squared_share) as center,
        sqrt(z_squared_share * (mean * (1 - mean) + z_squared_share / 4)) / (1 + z_squared_share) as half_width
    from judge_runs
),

fill_runs as (
    select
        runs.run_id,
        cast(coalesce(center_intervals.requests, 0) as bigint) as requests,
        cast(coalesce(center_intervals.ok_requests, 0) as bigint) as ok_requests,
        cast(coalesce(center_intervals.correct_requests, 0) as bigint) as correct_requests,
        coalesce(center_intervals.prompts, 0) as prompts,
        center_intervals.mean,
        center_intervals.standard_error,
        center_intervals.effective_requests,
        -- At a mean of 0 or 1 the end is exactly that, not a rounding away from it. greatest() and least() skip
        -- NULL, so an undefined end must be kept from them.
        case when center is not null then greatest(0, least(mean, center - half_width)) end as wilson_low,
        case when center is not null then least(1, greatest(mean, center + half_width)) end as wilson_high
    from runs
    left join center_intervals on center_intervals.run_id = runs.run_id
)

select * from fill_runs;

comment on view accuracy is 'One row per run: exact-match accuracy over the requests whose prompt has a target, with its uncertainty. Errors and missing answers count as wrong.';
comment on column accuracy.run_id is 'The run.';
comment on column accuracy.requests is 'Requests with a target: n.';
comment on column accuracy.ok_requests is 'Those of them that got a result.';
comment on column accuracy.correct_requests is 'Those of them that were correct.';
comment on column accuracy.prompts is 'Different prompts among them: G clusters. Repeats and duplicates of a prompt are one cluster.';
comment on column accuracy.mean is 'Share of correct ones, 0 to 1: correct_requests / requests. NULL where n is 0.';
comment on column accuracy.standard_error is 'Standard error of the mean, clustered by prompt: sqrt(G / (G − 1) × Σ over prompts of (Σ of (x − mean) in the prompt)²) / n, the cluster-robust variance of Liang and Zeger 1986 with the usual small-sample factor. With one request per prompt it is s / sqrt(n). NULL for fewer than two prompts.';
comment on column accuracy.effective_requests is 'Independent requests that the n are worth: n × Σ (x − mean)² / Σ over prompts of (Σ of (x − mean) in the prompt)², at most n (Kish''s design effect). n where every prompt was asked once; the number of prompts where repeats always agree, where mean is 0 or 1, or where there is one prompt. NULL where n is 0.';
comment on column accuracy.wilson_low is 'Lower end of Wilson''s 95 % score interval for the mean, with m = effective_requests and z = 1.96: (mean + z²/2m − z × sqrt(mean × (1 − mean)/m + z²/4m²)) / (1 + z²/m). NULL where n is 0.';
comment on column accuracy.wilson_high is 'Upper end of Wilson''s interval, with + z × sqrt(…). NULL where n is 0.';
