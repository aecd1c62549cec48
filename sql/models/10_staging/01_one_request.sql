-- Grain: one row per request of a run: duplicates collapsed to the first.
-- columns of: raw.requests
create or replace view internal.one_request as
select distinct on (run_id, request_id) *
from raw.requests;

comment on view internal.one_request is 'One row per request of a run. Duplicates, which request_integrity counts, are collapsed to one.';
