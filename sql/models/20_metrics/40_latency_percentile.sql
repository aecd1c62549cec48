-- Grain: one row per run × latency metric × percentile.
-- in pieces: metric (ttft_s, queue_s, prefill_s, decode_s, tpot_s, e2e_s, itl_s)
create or replace view internal.latency_percentile as
with

list_percentiles as (
    select unnest([0.5, 0.9, 0.95, 0.99, 0.999]::double[]) as percentile, unnest(range(1, 6)) as position
),

list_rows as (
    select runs.run_id, metrics.metric, list_percentiles.percentile, list_percentiles.position
    from raw.runs
    cross join (
        select unnest(['ttft_s', 'queue_s', 'prefill_s', 'decode_s', 'tpot_s', 'e2e_s']) as metric
    ) as metrics
    cross join list_percentiles
),

-- Not materialized: a filter on run_id must reach every use of the step.
stack_latencies as not materialized (
    select run_id, metric, value_s
    from (
        select run_id, ttft_s, queue_s, prefill_s, decode_s, tpot_s, e2e_s
        from stg_requests
        where status = 'ok' and phase = 'measured'
    )
    unpivot (value_s for metric in (ttft_s, queue_s, prefill_s, decode_s, tpot_s, e2e_s))
),

rank_latencies as (
    select
        run_id,
        metric,
        count(*) as n,
        quantile_cont(value_s, [0.5, 0.9, 0.95, 0.99, 0.999]::double[]) as quantiles_s,
        list(value_s order by value_s) as ranked_s
    from stack_latencies
    group by run_id, metric
),

count_latencies as (
    select distinct run_id, n
    from (select run_id, count(*) as n from stack_latencies group by run_id, metric)
),

-- How many of n values lie at or below the true percentile p is Binomial(n, p), whatever the values' distribution.
-- k runs over all that matters of it: beyond 8 standard deviations (and 30) lie less than 1e-12.
list_binomials as (
    select run_id, n, percentile, unnest(range(
        greatest(0, cast(floor(n * percentile - 8 * sqrt(n * percentile * (1 - percentile))) as bigint) - 30),
        least(n, cast(ceil(n * percentile + 8 * sqrt(n * percentile * (1 - percentile))) as bigint) + 30) + 1
    )) as k
    from count_latencies
    cross join list_percentiles
),

sum_binomials as (
    select
        run_id,
        n,
        percentile,
        k,
        sum(exp(
            lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * ln(percentile) + (n - k) * ln(1 - percentile)
        )) over (partition by run_id, n, percentile order by k) as probability_up_to_k
    from list_binomials
),

choose_ranks as (
    select
        run_id,
        n,
        percentile,
        min(k) filter (probability_up_to_k >= 0.025) as low_rank,
        min(k) filter (probability_up_to_k >= 0.975) + 1 as high_rank
    from sum_binomials
    group by run_id, n, percentile
    having low_rank >= 1 and high_rank <= n
),

read_percentiles as (
    select
        list_rows.run_id,
        list_rows.metric,
        list_rows.percentile,
        coalesce(rank_latencies.n, 0) as n,
        rank_latencies.quantiles_s[list_rows.position] as value_s,
        rank_latencies.ranked_s[choose_ranks.low_rank] as low_s,
        rank_latencies.ranked_s[choose_ranks.high_rank] as high_s
    from list_rows
    left join rank_latencies
        on rank_latencies.run_id = list_rows.run_id
        and rank_latencies.metric = list_rows.metric
    left join choose_ranks
        on choose_ranks.run_id = list_rows.run_id
        and choose_ranks.n = rank_latencies.n
        and choose_ranks.percentile = list_rows.percentile
),

-- Gaps share engine steps and so are not independent: no interval.
add_gaps as (
    select * from read_percentiles
    union all
    select run_id, 'itl_s', percentile, gaps, value_s, null, null from itl_percentile
)

select * from add_gaps;

comment on view internal.latency_percentile is 'One row per run × latency metric × percentile over measured ok requests, with a distribution-free 95% interval. The interval is about the requests of this run; it does not include the spread between runs.';
comment on column internal.latency_percentile.run_id is 'The run.';
comment on column internal.latency_percentile.metric is 'ttft_s, queue_s, prefill_s, decode_s, tpot_s or e2e_s of stg_requests, or itl_s of itl_percentile.';
comment on column internal.latency_percentile.percentile is 'As a fraction: 0.5, 0.9, 0.95, 0.99 or 0.999.';
comment on column internal.latency_percentile.n is 'Values it was read from: measured ok requests for which the metric is defined; gaps between events for itl_s.';
comment on column internal.latency_percentile.value_s is 'The percentile, seconds: quantile_cont, linear between the two nearest values at rank (n − 1) × percentile. NULL if n is 0.';
comment on column internal.latency_percentile.low_s is 'Lower end of the 95% interval, seconds: the value at rank l, the smallest k with P(B ≤ k) ≥ 0.025, B ~ Binomial(n, percentile). NULL if n is too small for either end (below 6, 36, 72, 368, 3,688 by percentile), and for itl_s, whose gaps share engine steps and so are not independent.';
comment on column internal.latency_percentile.high_s is 'Upper end of the 95% interval, seconds: the value at rank u, 1 + the smallest k with P(B ≤ k) ≥ 0.975. NULL if low_s is.';
