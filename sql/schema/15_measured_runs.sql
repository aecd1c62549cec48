-- Grain: one row per run whose metrics are stored.
create table if not exists raw.measured_runs (
    run_id varchar not null,
    definitions map(varchar, varchar) not null,
    prompts_digest varchar,
    is_longest_first boolean,
    measured_at timestamp not null
);

comment on table raw.measured_runs is 'One row per run whose metrics are in metric_values. A change of the run''s rows deletes it, in the same transaction.';
comment on column raw.measured_runs.definitions is 'Digest of the SQL of all views behind stored metrics, without comments, and version of DuckDB. If they are not today''s, the rows are computed again before assayline reads them.';
comment on column raw.measured_runs.prompts_digest is 'Digest of the run''s prompt rows, in no order. NULL for a run without prompts.';
comment on column raw.measured_runs.is_longest_first is 'Whether requests were ordered by expected lengths from earlier runs. NULL for a run without requests.';
comment on column raw.measured_runs.measured_at is 'UTC wall clock when they were computed.';
