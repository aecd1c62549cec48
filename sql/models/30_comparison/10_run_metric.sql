-- Grain: one row per run that has ended × metric that can be compared between runs.
create or replace view internal.run_metric as
with

find_first_scorer as (
    select run_id, scorer
    from raw.scorers
    qualify row_number() over (partition by run_id order by ordinal, scorer) = 1
),

name_metrics as (
    select
        metric_values.run_id,
        case
            when statistic in ('p50', 'p95', 'p99') then replace(metric, '_s', '') || '_' || statistic || '_s'
            else metric
        end as metric,
        value,
        low,
        high,
        unit,
        higher_is_better
    from raw.metric_values
    left join find_first_scorer on find_first_scorer.run_id = metric_values.run_id
    where (metric, statistic) in (
        ('requests_per_s', 'mean'),
        ('output_tokens_per_s', 'mean'),
        ('total_tokens_per_s', 'mean'),
        ('accuracy', 'mean'),
        ('cost_per_million_output_tokens', 'mean'),
        ('cost_per_thousand_requests', 'mean'),
        ('cost_per_right_answer', 'mean'),
        ('energy_per_output_token_joules', 'mean'),
        ('energy_per_request_joules', 'mean'),
        ('ttft_s', 'p50'),
        ('ttft_s', 'p95'),
        ('ttft_s', 'p99'),
        ('tpot_s', 'p50'),
        ('tpot_s', 'p95'),
        ('tpot_s', 'p99'),
        ('e2e_s', 'p50'),
        ('e2e_s', 'p95'),
        ('e2e_s', 'p99')
    )
        and (metric <> 'accuracy' or detail is not distinct from scorer)
)

select * from name_metrics;

comment on view internal.run_metric is 'One row per run that has ended × metric that can be compared between runs.';
comment on column internal.run_metric.metric is 'As in metric_values: requests_per_s, output_tokens_per_s, total_tokens_per_s, accuracy by the first scorer, or <latency>_p<percentile>_s: ttft, tpot and e2e at 50, 95 and 99; if they are known, cost_per_million_output_tokens, cost_per_thousand_requests, cost_per_right_answer, energy_per_output_token_joules and energy_per_request_joules.';
comment on column internal.run_metric.value is 'Its value in this run. NULL if it is undefined or was not measured.';
comment on column internal.run_metric.low is 'Lower end of its 95% interval. It is about the requests of this run, and does not cover differences between runs. NULL if there is none.';
comment on column internal.run_metric.unit is 'requests/s, tokens/s, share or s; of costs the currency per what it buys; of energies J/token or J/request. Costs in two currencies are not compared.';
comment on column internal.run_metric.higher_is_better is 'True for throughput and accuracy, false for latencies, costs and energies.';
