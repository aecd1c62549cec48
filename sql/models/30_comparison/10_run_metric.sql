-- Grain: one row per run that has ended × metric that can be compared between runs.
create or replace view internal.run_metric as
with

find_first_scorer as (
    select run_id, scorer
    from raw.scorers
    qualify row_number() over (partition by run_id order by ordinal, scorer) = 1
)

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
    ('e2e_s', 'p99'),
    ('batch_latency_s', 'p50')
)
    and (metric <> 'accuracy' or detail is not distinct from scorer);

comment on view internal.run_metric is 'One row per run that has ended × metric that can be compared between runs.';
