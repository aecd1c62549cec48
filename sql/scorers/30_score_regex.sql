-- Compare the match of a regular expression with the target.
-- The options of a search must be a constant, so ignoring case is a flag in front of the pattern.
create or replace macro internal.score_regex(answer, target, pattern, which_group, take, ignore_case) as
case
    when target is null then null
    when answer is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [internal.strip_space(
            regexp_extract_all(answer, case when ignore_case then '(?i)' || pattern else pattern end, which_group)[
                case when take = 'last' then -1 else 1 end
            ]
        )],
        lambda found: case
            when found is null then internal.make_score(0, null, 'the pattern finds nothing in the answer')
            when found = internal.strip_space(target) or (ignore_case and lower(found) = lower(internal.strip_space(target)))
            then internal.make_score(1, found, 'found the target')
            else internal.make_score(0, found, 'found ' || internal.shorten(found) || ', not ' || internal.shorten(internal.strip_space(target)))
        end
    )[1]
end;

comment on macro internal.score_regex is '1 if the chosen group of the first or last match of a pattern (RE2 syntax) in the answer is the target; both stripped of surrounding white space, with ignore_case in lower case. A group that took no part in its match has found nothing.';
