-- Grain: one row per run × metric × statistic × detail.
create table if not exists raw.metric_values (
    run_id varchar not null,
    source varchar not null,
    metric varchar not null,
    statistic varchar not null,
    detail varchar,
    value double,
    low double,
    high double,
    n bigint,
    unit varchar not null,
    higher_is_better boolean
);

comment on table raw.metric_values is 'One row per run × metric × statistic × detail: what was measured of a run that has ended. The statements of sql/metrics compute it, and the end of a run stores it.';
comment on column raw.metric_values.source is 'The statement of sql/metrics that computed the row.';
comment on column raw.metric_values.metric is 'Name of the metric, such as ttft_s, output_tokens_per_s or accuracy. docs/reference/metrics/index.md lists all of them.';
comment on column raw.metric_values.statistic is 'mean, total, max, or p50, p90, p95, p99 and p99.9: percentiles over requests.';
comment on column raw.metric_values.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column raw.metric_values.value is 'The value, in `unit`. NULL if it is undefined or was not measured.';
comment on column raw.metric_values.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column raw.metric_values.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column raw.metric_values.unit is 'Its unit; a share is 0 to 1, and so is a flag, which is 0 or 1.';
comment on column raw.metric_values.higher_is_better is 'Whether more is better. NULL if neither is.';
