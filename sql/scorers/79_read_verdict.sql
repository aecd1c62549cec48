-- A judge's answer: one JSON object, with or without a Markdown fence around it.
create or replace macro internal.read_verdict(answer, field, reason) as
list_transform(
    [try_cast(
        regexp_replace(internal.strip_space(answer), '^```[A-Za-z]*[ \t]*\n(.*)\n[ \t]*```$', '\1', 's') as json
    )],
    lambda object: case when json_type(object) = 'OBJECT' then {
        'verdict': internal.strip_space(json_extract_string(object, internal.point_to(field))),
        'reason': json_extract_string(object, internal.point_to(reason))
    } end
)[1];

comment on macro internal.read_verdict is 'The verdict and the reason in a judge''s answer, as text; NULL unless the answer is a JSON object. A Markdown fence around the complete answer is ignored.';
