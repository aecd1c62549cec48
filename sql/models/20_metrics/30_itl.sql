-- Grain: one row per run.
create or replace view internal.itl as
with

pool_gaps as (
    select
        run_id,
        count(distinct request_id) as requests,
        count(gap_s) as gaps,
        avg(gap_s) as mean_s,
        max(gap_s) as max_s
    from token_gap
    where phase = 'measured' and gap_s > 0
    group by run_id
),

take_percentiles as (
    select
        run_id,
        max(value_s) filter (percentile = 0.5) as p50_s,
        max(value_s) filter (percentile = 0.95) as p95_s,
        max(value_s) filter (percentile = 0.99) as p99_s
    from itl_percentile
    group by run_id
),

fill_runs as (
    select
        runs.run_id,
        coalesce(pool_gaps.requests, 0) as requests,
        coalesce(pool_gaps.gaps, 0) as gaps,
        pool_gaps.mean_s,
        take_percentiles.p50_s,
        take_percentiles.p95_s,
        take_percentiles.p99_s,
        pool_gaps.max_s
    from raw.runs
    left join pool_gaps on pool_gaps.run_id = runs.run_id
    left join take_percentiles on take_percentiles.run_id = runs.run_id
)

select * from fill_runs;

comment on view internal.itl is 'One row per run: inter-token latency (ITL) over every gap between two events with tokens of every measured ok request, pooled. Tokens with one stamp are one event, as vllm bench serve counts. Not the same statistic as tpot_s, which averages within a request first and so hides single long gaps.';
comment on column internal.itl.run_id is 'The run.';
comment on column internal.itl.requests is 'Measured ok requests with at least two recorded stamps that differ.';
comment on column internal.itl.gaps is 'Gaps pooled; 0 if token stamps were not recorded.';
comment on column internal.itl.mean_s is 'Mean gap, seconds. NULL if gaps is 0, like all columns below.';
comment on column internal.itl.p50_s is 'Median gap, seconds, as in itl_percentile.';
comment on column internal.itl.p95_s is '95th percentile of the gaps, seconds, as in itl_percentile.';
comment on column internal.itl.p99_s is '99th percentile of the gaps, seconds, as in itl_percentile.';
comment on column internal.itl.max_s is 'Longest gap, seconds.';
