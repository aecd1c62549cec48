-- Images, audio and video in prompts: locations and cost. Expected lengths of answers.
alter table requests add column media_json varchar;
alter table requests add column expected_output_tokens integer;
alter table completions add column images integer;
alter table completions add column image_pixels bigint;
alter table completions add column audios integer;
alter table completions add column audio_s double;
alter table completions add column videos integer;
alter table completions add column video_frames integer;
alter table completions add column video_s double;
alter table completions add column media_bytes bigint;
alter table completions add column media_tokens integer;
alter table completions add column media_prepare_s double;
