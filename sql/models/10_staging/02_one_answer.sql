-- Grain: one row per answered request of a run: the answer that counts.
-- Where a request was answered twice, a result counts before an error, then the earlier one.
-- columns of: raw.completions
create or replace view internal.one_answer as
select *
from raw.completions
qualify row_number() over (
    partition by run_id, request_id
    order by error_kind is not null, finished_at_s nulls last, worker, engine_generation
) = 1;

comment on view internal.one_answer is 'One row per answered request of a run: if there are two answers, a result counts before an error, then the earlier. request_integrity counts the others.';
