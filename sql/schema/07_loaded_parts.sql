-- Grain: one row per part file whose rows are in the database. Written in the transaction that inserts them.
create table if not exists raw.loaded_parts (
    run_id varchar not null,
    part varchar not null,
    target_table varchar not null,
    loaded_rows bigint not null
);

comment on table raw.loaded_parts is 'The ledger: one row per part file whose rows are in the database.';
comment on column raw.loaded_parts.part is 'File name of the part.';
comment on column raw.loaded_parts.target_table is 'Table that took its rows.';
comment on column raw.loaded_parts.loaded_rows is 'Rows taken.';
