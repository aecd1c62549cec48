-- Grain: one row per prompt row of a run whose spec names a cluster column, if the row has a value in it.
create or replace view internal.prompt_cluster as
with

-- As a JSON pointer, which takes any name.
find_columns as (
    select
        run_id,
        '/' || replace(replace(spec_json ->> '$.prompts.columns.cluster', '~', '~0'), '/', '~1') as place
    from raw.runs
    where spec_json ->> '$.prompts.columns.cluster' is not null
),

read_clusters as (
    select
        prompts.run_id,
        prompts.prompt_id,
        prompts.occurrence,
        min(json_extract_string(prompts.metadata_json, find_columns.place)) as cluster
    from raw.prompts
    join find_columns on find_columns.run_id = prompts.run_id
    group by prompts.run_id, prompts.prompt_id, prompts.occurrence
)

select * from read_clusters where cluster is not null;

comment on view internal.prompt_cluster is 'One row per prompt row with a value in the column that the spec names in prompts.columns.cluster. Prompt rows without one are a cluster with the other rows of their prompt_id.';
