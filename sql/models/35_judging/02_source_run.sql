-- Grain: one row per run whose prompts are answers of other runs × such a run.
create or replace view internal.source_run as
with

read_sources as (
    select
        run_id,
        spec_json -> '$.prompts.source' as source,
        source ->> '$.kind' as kind,
        case
            when kind = 'run' then [source ->> '$.run']
            when kind = 'pairs' then [source ->> '$.runs[0]', source ->> '$.runs[1]']
        end as sources
    from raw.runs
),

list_sources as (
    select run_id, kind, unnest(sources) as source_run_id, generate_subscripts(sources, 1) as ordinal
    from read_sources
),

find_judges as (
    select
        list_sources.run_id,
        list_sources.source_run_id,
        list_sources.ordinal,
        list_sources.kind = 'pairs' as is_pairs,
        list_sources.run_id in (select run_id from raw.scorers where kind = 'verdict') as is_judge
    from list_sources
)

select * from find_judges;

comment on view internal.source_run is 'One row per run whose prompts are answers of other runs × such a run, as its spec names them.';
comment on column internal.source_run.source_run_id is 'Run of the answers. It may be in another database.';
comment on column internal.source_run.ordinal is '1; for pairs 1 for the run of answer a, 2 for that of b.';
comment on column internal.source_run.is_pairs is 'Whether its prompts are pairs of answers.';
comment on column internal.source_run.is_judge is 'Whether it is a judge: it has a scorer of kind verdict.';
