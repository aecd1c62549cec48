-- Values as rows of metric_values: metric, statistic, value, n, unit, higher_is_better.
create or replace macro internal.metric_rows(rows) as cast(
    rows as struct(
        metric varchar, statistic varchar, value double, n bigint, unit varchar, higher_is_better boolean
    )[]
);

comment on macro internal.metric_rows is 'metric_rows(rows), a list of (metric, statistic, value, n, unit, higher_is_better): the same with names and types, for unnest.';
