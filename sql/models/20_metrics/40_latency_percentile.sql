-- Grain: one row per run × latency metric × percentile.
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
    select
        run_id,
        metric,
        value_s,
        ntile(20) over (partition by run_id, metric order by arrived_at_s, request_id) as batch
    from (
        select run_id, request_id, arrived_at_s, ttft_s, queue_s, prefill_s, decode_s, tpot_s, e2e_s
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

-- Requests in a queue are not independent. The shares of values up to the percentile in 20 batches of neighbors, in
-- order of arrival, vary with their correlation: the method of batch means (Schmeiser 1982).
share_batches as (
    select
        run_id,
        metric,
        batch,
        any_value(n) as n,
        list_percentiles.percentile,
        avg(cast(value_s <= quantiles_s[list_percentiles.position] as integer)) as share
    from stack_latencies
    join rank_latencies using (run_id, metric)
    cross join list_percentiles
    group by run_id, metric, batch, list_percentiles.percentile
),

center_shares as (
    select
        *,
        avg(share) over (partition by run_id, metric, percentile) as mean_share,
        share - mean_share as deviation
    from share_batches
),

pair_batches as (
    select *, lag(deviation) over (partition by run_id, metric, percentile order by batch) as previous_deviation
    from center_shares
),

-- Batches that are too short are correlated too: an AR(1) of them, with its correlation at the upper end of chance.
correlate_batches as (
    select
        run_id,
        metric,
        percentile,
        any_value(n) as n,
        any_value(mean_share * (1 - mean_share)) as independent_variance,
        var_samp(share) / 20 as variance,
        greatest(0, sum(deviation * previous_deviation) / sum(deviation ** 2) + 1 / 20 + 1 / sqrt(20)) as correlation
    from pair_batches
    group by run_id, metric, percentile
    having count(*) = 20
),

-- Korn and Graubard 1998, as in internal.effective_samples: with 19 degrees of freedom.
count_effective as (
    select
        run_id,
        metric,
        percentile,
        n,
        case
            when variance < 1e-12 then n
            else cast(floor(least(
                n,
                greatest(0, independent_variance / variance * (1.959963984540054 / internal.t_quantile(19)) ** 2
                    * (1 - correlation) / (1 + correlation))
            )) as bigint)
        end as effective_requests
    from correlate_batches
),

-- The median shows the correlation best: a run without a long queue does not show what one does to the tail. In an open
-- loop, a run of few requests that looks calm is one that has seen no burst.
keep_supported as (
    select *
    from (
        select
            *,
            max(case when percentile = 0.5 then effective_requests end) over (partition by run_id, metric)
                as median_requests
        from count_effective
    )
    left join raw.loads using (run_id)
    where median_requests * least(percentile, 1 - percentile) >= 10 - 1e-9
        and (n >= 2000 or coalesce(arrival, 'concurrency') in ('concurrency', 'all_at_once'))
),

-- How many of m independent values lie at or below the true percentile p is Binomial(m, p), whatever their
-- distribution. k runs over all that matters of it: beyond 8 standard deviations (and 30) lie less than 1e-12.
list_binomials as (
    select run_id, effective_requests as m, percentile, unnest(range(
        greatest(0, cast(floor(m * percentile - 8 * sqrt(m * percentile * (1 - percentile))) as bigint) - 30),
        least(m, cast(ceil(m * percentile + 8 * sqrt(m * percentile * (1 - percentile))) as bigint) + 30) + 1
    )) as k
    from (select distinct run_id, effective_requests, percentile from keep_supported)
),

sum_binomials as (
    select
        run_id,
        m,
        percentile,
        k,
        sum(exp(
            lgamma(m + 1) - lgamma(k + 1) - lgamma(m - k + 1) + k * ln(percentile) + (m - k) * ln(1 - percentile)
        )) over (partition by run_id, m, percentile order by k) as probability_up_to_k
    from list_binomials
),

choose_ranks as (
    select
        run_id,
        m,
        percentile,
        min(k) filter (probability_up_to_k >= 0.025) as low_rank,
        min(k) filter (probability_up_to_k >= 0.975) + 1 as high_rank
    from sum_binomials
    group by run_id, m, percentile
    having low_rank >= 1 and high_rank <= m
),

-- Ranks of m values as ranks of n, rounded outwards.
scale_ranks as (
    select
        keep_supported.run_id,
        metric,
        keep_supported.percentile,
        greatest(1, low_rank * n // m) as low_rank,
        ((high_rank - 1) * n + m - 1) // m + 1 as high_rank
    from keep_supported
    join choose_ranks
        on choose_ranks.run_id = keep_supported.run_id
        and choose_ranks.m = keep_supported.effective_requests
        and choose_ranks.percentile = keep_supported.percentile
),

read_percentiles as (
    select
        list_rows.run_id,
        list_rows.metric,
        list_rows.percentile,
        coalesce(rank_latencies.n, 0) as n,
        rank_latencies.quantiles_s[list_rows.position] as value_s,
        rank_latencies.ranked_s[scale_ranks.low_rank] as low_s,
        rank_latencies.ranked_s[scale_ranks.high_rank] as high_s
    from list_rows
    left join rank_latencies
        on rank_latencies.run_id = list_rows.run_id
        and rank_latencies.metric = list_rows.metric
    left join scale_ranks
        on scale_ranks.run_id = list_rows.run_id
        and scale_ranks.metric = list_rows.metric
        and scale_ranks.percentile = list_rows.percentile
),

-- Gaps share engine steps and so are not independent: no interval.
add_gaps as (
    select * from read_percentiles
    union all
    select run_id, 'itl_s', percentile, gaps, value_s, null, null from itl_percentile
)

select * from add_gaps;

comment on view internal.latency_percentile is 'One row per run × latency metric × percentile over measured ok requests, with a distribution-free 95% interval that allows for correlation between requests, or none. The interval is about the requests of this run; it does not include the spread between runs.';
comment on column internal.latency_percentile.run_id is 'The run.';
comment on column internal.latency_percentile.metric is 'ttft_s, queue_s, prefill_s, decode_s, tpot_s or e2e_s of stg_requests, or itl_s of itl_percentile.';
comment on column internal.latency_percentile.percentile is 'As a fraction: 0.5, 0.9, 0.95, 0.99 or 0.999.';
comment on column internal.latency_percentile.n is 'Values it was read from: measured ok requests for which the metric is defined; gaps between events for itl_s.';
comment on column internal.latency_percentile.value_s is 'The percentile, seconds: quantile_cont, linear between the two nearest values at rank (n − 1) × percentile. NULL if n is 0.';
comment on column internal.latency_percentile.low_s is 'Lower end of the 95% interval, seconds. Requests in a queue are not independent, so m of them count: m = min(n, s (1 − s) / V × (1.96 / t)² × (1 − r) / (1 + r)). In 20 equal batches in order of arrival, s is the mean share of values up to the percentile, V the variance of these shares / 20 (batch means: Schmeiser 1982), t has 19 degrees of freedom, and r is the correlation of neighboring batches + 1/20 + 1/√20 (bias and one standard error), at least 0. The end is the value at rank ⌊l n / m⌋, where l is the smallest k with P(B ≤ k) ≥ 0.025, B ~ Binomial(m, percentile). NULL unless the m of the median × min(percentile, 1 − percentile) is at least 10 (20, 100, 200, 1,000 and 10,000 requests by percentile, more if they are correlated); unless an open loop has 2,000 requests; if m is too small for either end; and for itl_s, whose gaps share engine steps.';
comment on column internal.latency_percentile.high_s is 'Upper end of the 95% interval, seconds: the value at rank ⌈(u − 1) n / m⌉ + 1, where u is 1 + the smallest k with P(B ≤ k) ≥ 0.975. NULL if low_s is.';
