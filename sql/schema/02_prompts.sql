-- Grain: one row per row of a run's prompt set.
create table if not exists raw.prompts (
    run_id varchar not null,
    prompt_id varchar not null,
    occurrence integer not null,
    source_row bigint not null,
    source_id varchar,
    messages_json varchar not null,
    target varchar,
    options varchar[],
    metadata_json varchar not null
);

comment on table raw.prompts is 'One row per row of a run''s prompt set, duplicates included.';
comment on column raw.prompts.prompt_id is 'Digest of question, target and options. Few-shot examples are not in it: with five or none, it is the same prompt.';
comment on column raw.prompts.occurrence is '0 for the first row of the run with this prompt_id, 1 for the next, and so on.';
comment on column raw.prompts.source_row is '0-based position of the row in its source.';
comment on column raw.prompts.source_id is 'The row''s own id column, as text.';
comment on column raw.prompts.messages_json is 'Chat messages as JSON: a list of {role, content}, few-shot examples included.';
comment on column raw.prompts.target is 'The expected answer, NULL if there is none.';
comment on column raw.prompts.options is 'The answers to choose from. NULL for generated answers.';
comment on column raw.prompts.metadata_json is 'The row''s metadata columns as a JSON object.';
