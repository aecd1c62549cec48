-- Grain: one row per run. The only table with wall-clock times; every other time is seconds since started_at.
create table if not exists raw.runs (
    run_id varchar not null,
    name varchar not null,
    prompt_set varchar not null,
    model varchar not null,
    model_id varchar,
    tokenizer_id varchar,
    template_id varchar,
    sampling_id varchar,
    spec_hash varchar not null,
    spec_json varchar not null,
    config_id varchar,
    benchmark_id varchar,
    assayline_version varchar not null,
    host_name varchar not null,
    attempt integer not null,
    state varchar not null,
    message varchar,
    started_at timestamp not null,
    finished_at timestamp,
    prompt_rows bigint,
    duplicate_prompts bigint,
    expected_requests bigint,
    machine varchar,
    purpose varchar,
    job map(varchar, varchar),
    tags varchar[],
    note varchar
);

comment on table raw.runs is 'One row per run of a spec: its spec and its model.';
comment on column raw.runs.run_id is 'Identity of the run.';
comment on column raw.runs.name is 'The spec''s name.';
comment on column raw.runs.prompt_set is 'Name of the prompt set.';
comment on column raw.runs.model is 'The model as the spec names it: hub id or folder; or a running server''s name for it, if that is another one.';
comment on column raw.runs.model_id is 'Content identity of the model: hub commit, or digest over its files.';
comment on column raw.runs.tokenizer_id is 'Digest over the tokenizer''s files.';
comment on column raw.runs.template_id is 'Digest of the chat template that rendered the prompts.';
comment on column raw.runs.sampling_id is 'Digest of the spec''s sampling parameters.';
comment on column raw.runs.spec_hash is 'Digest of the canonical spec.';
comment on column raw.runs.spec_json is 'The canonical spec, as JSON. For an imported run, the tool and its settings, in the fields of a spec.';
comment on column raw.runs.config_id is 'Digest of what decides answers and speed: the spec without its name and without how it is judged, and the model''s content. Runs with the same one are repeats.';
comment on column raw.runs.benchmark_id is 'The benchmark that the run is a part of, NULL for a standalone run.';
comment on column raw.runs.assayline_version is 'Version of assayline that ran it.';
comment on column raw.runs.host_name is 'Machine that ran the flow; unknown for an imported run.';
comment on column raw.runs.attempt is 'How often the run was started, 1 for the first time.';
comment on column raw.runs.state is 'running, completed, failed, cancelled, interrupted or imported. A killed run is running until the next command that opens the database. An imported run is one of another tool.';
comment on column raw.runs.message is 'Reason why it ended, or why a completed run lacks scores of judges.';
comment on column raw.runs.started_at is 'UTC wall clock at the start of the run: the zero of all *_at_s.';
comment on column raw.runs.finished_at is 'UTC wall clock at the end of the run.';
comment on column raw.runs.prompt_rows is 'Rows taken from the prompt set, duplicates included.';
comment on column raw.runs.duplicate_prompts is 'Rows whose messages and target an earlier row of the run already had.';
comment on column raw.runs.expected_requests is 'Requests that the run must answer: prompt rows × repeats.';
comment on column raw.runs.machine is 'Kind of machine that ran the flow: ASSAYLINE_MACHINE, else the CPU''s model and the number of cores that the flow may use. For an imported run, the name given to assayline import.';
comment on column raw.runs.purpose is 'Purpose of the run: evaluate, night, suite, benchmark, judge, reread or import.';
comment on column raw.runs.job is 'Where its last attempt ran, by environment variable: the job and nodes of Slurm, the job of Ray, pod and node of Kubernetes.';
comment on column raw.runs.tags is 'Tags that people gave it, sorted. They and the note are in run.json, too.';
comment on column raw.runs.note is 'A person''s note on it.';
