-- Grain: one row per run × percentile.
-- The one place where gaps are ranked: itl and latency_percentile read it.
--
-- Per event, as vllm bench serve counts: several tokens that come at once, as of speculative decoding, end one gap. Per
-- token, all but one of them would have a gap of 0, and the median would be 0 if most events have two tokens or more.
create or replace view internal.itl_percentile as
with

list_percentiles as (
    select unnest([0.5, 0.9, 0.95, 0.99, 0.999]::double[]) as percentile, unnest(range(1, 6)) as position
),

pool_gaps as (
    select
        run_id,
        count(gap_s) as gaps,
        quantile_cont(gap_s, [0.5, 0.9, 0.95, 0.99, 0.999]::double[]) as quantiles_s
    from token_gap
    where phase = 'measured' and gap_s > 0
    group by run_id
),

read_percentiles as (
    select
        runs.run_id,
        list_percentiles.percentile,
        coalesce(pool_gaps.gaps, 0) as gaps,
        pool_gaps.quantiles_s[list_percentiles.position] as value_s
    from raw.runs
    cross join list_percentiles
    left join pool_gaps on pool_gaps.run_id = runs.run_id
)

select * from read_percentiles;

comment on view internal.itl_percentile is 'One row per run × percentile: inter-token latency (ITL) over every gap between two events with tokens of every measured ok request, pooled. Tokens with one stamp are one event. Without intervals, as gaps share engine steps and so are not independent.';
comment on column internal.itl_percentile.run_id is 'The run.';
comment on column internal.itl_percentile.percentile is 'As a fraction: 0.5, 0.9, 0.95, 0.99 or 0.999.';
comment on column internal.itl_percentile.gaps is 'Gaps pooled; 0 if token stamps were not recorded.';
comment on column internal.itl_percentile.value_s is 'The percentile, seconds: quantile_cont(token_gap.gap_s, percentile) of the gaps above 0, linear between the two nearest gaps. NULL if gaps is 0.';
