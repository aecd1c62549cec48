-- The target somewhere in the answer.
create or replace macro internal.score_contains(answer, target, ignore_case) as
case
    when target is null then null
    when answer is null then internal.make_score(0, null, 'no answer')
    when internal.strip_space(target) = '' then internal.make_score(0, internal.strip_space(answer), 'the target is empty, and would be anywhere')
    when contains(
        case when ignore_case then lower(answer) else answer end,
        internal.strip_space(case when ignore_case then lower(target) else target end)
    ) then internal.make_score(1, internal.strip_space(answer), 'the target is in the answer')
    else internal.make_score(0, internal.strip_space(answer), 'not in the answer: ' || internal.shorten(internal.strip_space(target)))
end;

comment on macro internal.score_contains is '1 if the target, stripped of surrounding white space, is somewhere in the answer, inside words too; with ignore_case both in lower case. The extracted answer is all of it. An empty target is never found.';
