-- Grain: one row per run whose prompts had images, audio or video.
--
-- Throughput in tokens cannot be compared between a model that turns an image into 64 tokens and one that turns it
-- into 2,000. So images, pixels and seconds of audio are counted directly, and media tokens separately from text
-- tokens. Rates are over the same requests and seconds as run_summary.requests_per_s.
create or replace view internal.media_use as
with

add_requests as (
    select
        run_id,
        count(*) as media_requests,
        sum(images) as images,
        sum(audios) as audios,
        sum(videos) as videos,
        quantile_cont(media_prepare_s, [0.5, 0.95]::double[]) as prepare_quantiles_s,
        sum(images) filter (is_finished) as finished_images,
        sum(image_pixels) filter (is_finished) as finished_pixels,
        sum(audio_s) filter (is_finished) as finished_audio_s,
        sum(video_s) filter (is_finished) as finished_video_s,
        sum(media_tokens) filter (is_finished) as finished_media_tokens
    from stg_requests
    where status = 'ok' and (images is not null or audios is not null or videos is not null)
    group by run_id
),

-- Text of all requests, those without media too: the other part of total_tokens_per_s.
add_text as (
    select
        run_id,
        sum(prompt_tokens - coalesce(media_tokens, 0)) filter (is_finished) as finished_text_tokens
    from stg_requests
    where run_id in (select run_id from add_requests)
    group by run_id
),

rate_media as (
    select
        add_requests.run_id,
        media_requests,
        cast(images as bigint) as images,
        cast(audios as bigint) as audios,
        cast(videos as bigint) as videos,
        finished_images / nullif(measured_s, 0) as images_per_s,
        finished_pixels / 1e6 / nullif(measured_s, 0) as megapixels_per_s,
        finished_audio_s / nullif(measured_s, 0) as audio_s_per_s,
        finished_video_s / nullif(measured_s, 0) as video_s_per_s,
        finished_media_tokens / nullif(measured_s, 0) as media_tokens_per_s,
        case when finished_media_tokens is not null then finished_text_tokens / nullif(measured_s, 0) end
            as text_tokens_per_s,
        prepare_quantiles_s[1] as prepare_p50_s,
        prepare_quantiles_s[2] as prepare_p95_s
    from add_requests
    join add_text using (run_id)
    join run_summary using (run_id)
)

select * from rate_media;

comment on view internal.media_use is 'One row per run whose prompts had images, audio or video: how many, and how many a second. Sums are over ok requests with media, rates over those that run_summary.requests_per_s counts.';
comment on column internal.media_use.run_id is 'The run.';
comment on column internal.media_use.media_requests is 'Ok requests with media.';
comment on column internal.media_use.images is 'Their images. NULL if there are none, as the other sums of a kind.';
comment on column internal.media_use.audios is 'Audio clips in them.';
comment on column internal.media_use.videos is 'Their videos.';
comment on column internal.media_use.images_per_s is 'Images per second: those of finished requests / run_summary.measured_s.';
comment on column internal.media_use.megapixels_per_s is 'Millions of pixels per second, likewise.';
comment on column internal.media_use.audio_s_per_s is 'Seconds of audio per second (RTFx, the inverse real-time factor), likewise.';
comment on column internal.media_use.video_s_per_s is 'Seconds of video per second, likewise.';
comment on column internal.media_use.media_tokens_per_s is 'Prompt tokens of media per second, likewise.';
comment on column internal.media_use.text_tokens_per_s is 'Prompt tokens of text per second, of all finished requests, likewise: with media_tokens_per_s and output_tokens_per_s it makes total_tokens_per_s. NULL if the engine does not distinguish them.';
comment on column internal.media_use.prepare_p50_s is 'Median of media_prepare_s, seconds.';
comment on column internal.media_use.prepare_p95_s is 'Its 95th percentile, seconds.';
