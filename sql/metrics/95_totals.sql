-- The numbers that an imported file without requests states, with its own statistics. Grain: one row per number.
select unnest(
    from_json(
        spec_json -> '$.imported.totals',
        '[{"metric": "VARCHAR", "statistic": "VARCHAR", "detail": "VARCHAR", "value": "DOUBLE", "n": "BIGINT",
           "unit": "VARCHAR", "higher_is_better": "BOOLEAN"}]'
    ),
    recursive := true
)
from raw.runs
where run_id = getvariable('run_id')
