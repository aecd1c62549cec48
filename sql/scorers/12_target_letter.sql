-- The letter that a target means.
create or replace macro internal.target_letter(target, letters) as
coalesce(
    upper(nullif(
        regexp_extract(target, '^\(?([' || letters || lower(letters) || '])(?:\)?$|[.:)](?:\s|$))', 1), ''
    )),
    case
        when regexp_full_match(target, '\d{1,2}') and not regexp_matches(letters, '\d')
        then nullif(substr(letters, try_cast(target as integer) + 1, 1), '')
    end
);

comment on macro internal.target_letter is 'The letter of a target: it begins with it ("B", "(B)", "B. Paris"), or is its 0-based place among the letters. NULL if neither is so.';
