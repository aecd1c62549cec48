-- Images, audio, video and their tokens per second, over the requests and seconds that throughput is of. Tokens cannot
-- be compared between models that turn an image into 64 of them and into 2,000. Grain: one row per metric.
with sums as (
    select
        count(*) filter (has_media) as n,
        sum(images) filter (has_media) as images,
        sum(audios) filter (has_media) as audios,
        sum(videos) filter (has_media) as videos,
        quantile_cont(media_prepare_s, [0.5, 0.95]::double[]) filter (has_media) as prepare_s,
        sum(images) filter (has_media and is_finished) as finished_images,
        sum(image_pixels) filter (has_media and is_finished) / 1e6 as finished_megapixels,
        sum(audio_s) filter (has_media and is_finished) as finished_audio_s,
        sum(video_s) filter (has_media and is_finished) as finished_video_s,
        sum(media_tokens) filter (has_media and is_finished) as finished_media_tokens,
        -- text of all requests, those without media too
        sum(prompt_tokens - coalesce(media_tokens, 0)) filter (is_finished) as finished_text_tokens
    from (
        select *, status = 'ok' and coalesce(images, audios, videos) is not null as has_media
        from request
        where run_id = getvariable('run_id')
    )
),

seconds as (
    select max(value) as measured_s
    from metric_value
    where run_id = getvariable('run_id') and metric = 'measured_s'
)

select unnest(metric_rows([
    ('images_per_s', 'mean', finished_images / nullif(measured_s, 0), images, 'images/s', true),
    ('megapixels_per_s', 'mean', finished_megapixels / nullif(measured_s, 0), images, 'megapixels/s', true),
    ('audio_s_per_s', 'mean', finished_audio_s / nullif(measured_s, 0), audios, 's/s', true),
    ('video_s_per_s', 'mean', finished_video_s / nullif(measured_s, 0), videos, 's/s', true),
    ('media_tokens_per_s', 'mean', finished_media_tokens / nullif(measured_s, 0), n, 'tokens/s', true),
    ('text_tokens_per_s', 'mean', case when finished_media_tokens is not null
        then finished_text_tokens / nullif(measured_s, 0) end, n, 'tokens/s', true),
    ('media_prepare_s', 'p50', prepare_s[1], n, 's', false),
    ('media_prepare_s', 'p95', prepare_s[2], n, 's', false)
]), recursive := true)
from sums, seconds;
