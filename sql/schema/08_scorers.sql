-- Grain: one row per scorer of a run.
create table if not exists raw.scorers (
    run_id varchar not null,
    scorer varchar not null,
    kind varchar not null,
    ordinal integer not null,
    arguments_json varchar not null,
    assayline_version varchar not null,
    scored_at timestamp not null,
    definition varchar
);

comment on table raw.scorers is 'One row per scorer of a run: how its scores were made.';
comment on column raw.scorers.scorer is 'The scorer''s name in the spec, or its kind.';
comment on column raw.scorers.kind is 'Which scorer it is: exact_match, contains, regex, numeric, choice, token_f1, json, loglikelihood, python, math, code, verdict, judge, lm_eval, imported.';
comment on column raw.scorers.ordinal is 'Its place in the spec, 0 for the one that a run shows first; those given later come after.';
comment on column raw.scorers.arguments_json is 'The scorer as the spec has it, defaults included, as JSON. Of lm_eval: metric, filter and, as harness, the harness''s own aggregate of each task and group; of all tasks, the scorer of each as tasks.';
comment on column raw.scorers.assayline_version is 'Version of assayline that scored.';
comment on column raw.scorers.scored_at is 'UTC wall clock when it was done.';
comment on column raw.scorers.definition is 'Definition of the scorer, besides kind and arguments: a digest of its code, of stg_samples and of how errors are scored. For lm_eval, the harness''s version. For runs older than this column, the version of assayline. Scores by different definitions are not comparable.';
