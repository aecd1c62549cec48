-- Grain: one row per run.
create or replace view itl as
with

pool_gaps as (
    select
        run_id,
        count(distinct request_id) as requests,
        count(itl_s) as gaps,
        avg(itl_s) as mean_s,
        quantile_cont(itl_s, [0.5, 0.95, 0.99]::double[]) as quantiles,
        max(itl_s) as max_s
    from token_gap
    group by run_id
),

fill_runs as (
    select
        runs.run_id,
        coalesce(pool_gaps.requests, 0) as requests,
        coalesce(pool_gaps.gaps, 0) as gaps,
        pool_gaps.mean_s,
        pool_gaps.quantiles[1] as p50_s,
        pool_gaps.quantiles[2] as p95_s,
        pool_gaps.quantiles[3] as p99_s,
        pool_gaps.max_s
    from runs
    left join pool_gaps on pool_gaps.run_id = runs.run_id
)

select * from fill_runs;

comment on view itl is 'One row per run: inter-token latency over every gap of every ok request, pooled. Not the same statistic as tpot_s, which averages within a request first and so hides single long gaps.';
comment on column itl.run_id is 'The run.';
comment on column itl.requests is 'Ok requests with at least two recorded token stamps.';
comment on column itl.gaps is 'Gaps pooled; 0 where token stamps were not recorded.';
comment on column itl.mean_s is 'Mean gap, seconds. NULL where gaps is 0, as all that follow.';
comment on column itl.p50_s is 'Median gap, seconds: quantile_cont(itl_s, 0.5).';
comment on column itl.p95_s is '95th percentile of the gaps, seconds: quantile_cont(itl_s, 0.95).';
comment on column itl.p99_s is '99th percentile of the gaps, seconds: quantile_cont(itl_s, 0.99).';
comment on column itl.max_s is 'Longest gap, seconds.';
