-- Grain: one row per label that a person gave. A sample is a prompt row × a repeat of a run.
create table if not exists raw.labels (
    run_id varchar not null,
    prompt_id varchar not null,
    occurrence integer not null,
    repeat_index integer not null,
    rubric varchar,
    label varchar,
    labelled_by varchar not null,
    labelled_at timestamp not null
);

comment on table raw.labels is 'One row per label that a person gave to an answer. A label is never replaced: another one is a further row, and the newest counts.';
comment on column raw.labels.run_id is 'The run of the answer.';
comment on column raw.labels.rubric is 'The question that the label answers, as judge_run.rubric. NULL if no judge had asked one.';
comment on column raw.labels.label is 'The label: a word of the judge''s values, or a number of its scale. NULL withdraws the label before.';
comment on column raw.labels.labelled_by is 'Name of the person''s account on the machine.';
comment on column raw.labels.labelled_at is 'UTC wall clock.';
