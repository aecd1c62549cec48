-- Grain: one row per run with media × metric: throughput by kind, and the time of preparing media.
create or replace view internal.media_value as
with

list_values as (
    select
        run_id,
        unnest([
            {'metric': 'images_per_s', 'statistic': 'mean', 'value': images_per_s, 'n': images, 'unit': 'images/s'},
            {'metric': 'megapixels_per_s', 'statistic': 'mean', 'value': megapixels_per_s, 'n': images,
                'unit': 'megapixels/s'},
            {'metric': 'audio_s_per_s', 'statistic': 'mean', 'value': audio_s_per_s, 'n': audios, 'unit': 's/s'},
            {'metric': 'video_s_per_s', 'statistic': 'mean', 'value': video_s_per_s, 'n': videos, 'unit': 's/s'},
            {'metric': 'media_tokens_per_s', 'statistic': 'mean', 'value': media_tokens_per_s, 'n': media_requests,
                'unit': 'tokens/s'},
            {'metric': 'text_tokens_per_s', 'statistic': 'mean', 'value': text_tokens_per_s, 'n': media_requests,
                'unit': 'tokens/s'},
            {'metric': 'media_prepare_s', 'statistic': 'p50', 'value': prepare_p50_s, 'n': media_requests,
                'unit': 's'},
            {'metric': 'media_prepare_s', 'statistic': 'p95', 'value': prepare_p95_s, 'n': media_requests,
                'unit': 's'}
        ]) as row
    from media_use
),

name_columns as (
    select
        run_id,
        row.metric,
        row.statistic,
        cast(null as varchar) as detail,
        cast(row.value as double) as value,
        cast(null as double) as low,
        cast(null as double) as high,
        cast(row.n as bigint) as n,
        row.unit,
        row.metric <> 'media_prepare_s' as higher_is_better
    from list_values
    where row.value is not null
)

select * from name_columns;

comment on view internal.media_value is 'One row per run with media × metric: throughput by kind, and the time of preparing media. A source of metric_values.';
comment on column internal.media_value.run_id is 'The run.';
comment on column internal.media_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.media_value.statistic is 'Which statistic of it.';
comment on column internal.media_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.media_value.value is 'The value, in `unit`.';
comment on column internal.media_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.media_value.high is 'Upper end.';
comment on column internal.media_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.media_value.unit is 'Its unit.';
comment on column internal.media_value.higher_is_better is 'Whether more is better. NULL if neither is.';
