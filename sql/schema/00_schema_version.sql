-- Grain: one row, ever: which tables and which models this database has.
create schema if not exists raw;
create schema if not exists internal;

create table if not exists raw.schema_version (
    table_version integer not null,
    schema_digest varchar not null,
    models_digest varchar not null,
    model_names varchar[] not null,
    assayline_version varchar not null
);

comment on table raw.schema_version is 'One row: which raw tables and which models this database has.';
comment on column raw.schema_version.table_version is 'Version of the raw tables'' columns. A database of another version is refused; assayline db rebuild --all makes it again.';
comment on column raw.schema_version.schema_digest is 'sha256 over the files of sql/schema/ that made the tables.';
comment on column raw.schema_version.models_digest is 'sha256 over the files of sql/macros/ and sql/models/ that made the macros and views.';
comment on column raw.schema_version.model_names is 'Macros and views that those files made, each with its schema, in the order of their creation.';
comment on column raw.schema_version.assayline_version is 'Version of assayline that applied them.';
