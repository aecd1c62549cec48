-- Grain: one row per request of a run: duplicates collapsed to the first.
-- columns of: raw.requests
create or replace view internal.one_request as
select requests.*
from raw.requests
left join (
    select run_id, rowid as place
    from raw.requests
    qualify row_number() over (partition by run_id, request_id order by rowid) > 1
) as others on others.run_id = requests.run_id and others.place = requests.rowid
where others.place is null;

comment on view internal.one_request is 'One row per request of a run. Duplicates, which request_integrity counts, are collapsed to one.';
