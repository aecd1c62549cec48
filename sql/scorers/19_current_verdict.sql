-- The table verdicts keeps judgements as they were stored, some in other words.
create or replace macro internal.current_verdict(verdict) as
case verdict
    when 'held' then 'pass'
    when 'broken' then 'fail'
    when 'not judged' then 'inconclusive'
    else verdict
end;

comment on macro internal.current_verdict is 'A stored verdict as pass, fail or inconclusive. Earlier versions stored held, broken and not judged.';
