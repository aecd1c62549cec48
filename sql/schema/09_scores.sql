-- Grain: one row per sample of a run and scorer. A sample is a prompt row × a repeat; its options, if any, are one
-- sample.
create table if not exists raw.scores (
    run_id varchar not null,
    scorer varchar not null,
    prompt_id varchar not null,
    occurrence integer not null,
    repeat_index integer not null,
    value double not null,
    extracted varchar,
    explanation varchar,
    error_kind varchar,
    found_by varchar
);

comment on table raw.scores is 'One row per sample (prompt row × repeat) of a run and scorer. Prompts without a target have none if the scorer needs one.';
comment on column raw.scores.value is '0 for wrong to 1 for right. Errors are 0; a request without an answer has no row.';
comment on column raw.scores.extracted is 'Answer that the scorer extracted. NULL if it found none.';
comment on column raw.scores.explanation is 'Why the value is what it is, in words.';
comment on column raw.scores.found_by is 'How numeric and choice found the answer: stated, only (nothing else could be meant) or last (of several). NULL for none and for other scorers.';
comment on column raw.scores.error_kind is 'Kind of error, as in completions. NULL if there was an answer to score.';
