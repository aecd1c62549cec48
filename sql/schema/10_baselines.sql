-- Grain: one row per name under which a run is pinned.
create table if not exists raw.baselines (
    baseline varchar not null,
    run_id varchar not null,
    pinned_at timestamp not null,
    note varchar,
    pinned_by varchar
);

comment on table raw.baselines is 'One row per pinned baseline: the run that later runs are compared with.';
comment on column raw.baselines.baseline is 'The name that specs and commands call it by.';
comment on column raw.baselines.run_id is 'The pinned run.';
comment on column raw.baselines.pinned_at is 'UTC wall clock when it was pinned.';
comment on column raw.baselines.note is 'Why, in words.';
comment on column raw.baselines.pinned_by is 'Account that pinned it.';
