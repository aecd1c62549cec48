-- Grain: one row per answered request of a run: the answer that counts.
-- Where a request was answered twice, a result counts before an error, then the earlier one.
-- Only keys are sorted: a million answers with their texts would take a GiB.
-- columns of: raw.completions
create or replace view internal.one_answer as
select completions.*
from raw.completions
left join (
    select run_id, rowid as place
    from raw.completions
    qualify row_number() over (
        partition by run_id, request_id
        order by error_kind is not null, finished_at_s nulls last, worker, engine_generation, rowid
    ) > 1
) as others on others.run_id = completions.run_id and others.place = completions.rowid
where others.place is null;

comment on view internal.one_answer is 'One row per answered request of a run: if there are two answers, a result counts before an error, then the earlier. request_integrity counts the others.';
