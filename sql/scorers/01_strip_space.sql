-- Strip the same white space at both ends as Python's str.strip(); trim() alone strips only spaces.
create or replace macro internal.strip_space(text) as
regexp_replace(
    regexp_replace(text, '^[\s\v\p{Z}\x1c-\x1f\x{85}]+', ''), '[\s\v\p{Z}\x1c-\x1f\x{85}]+$', ''
);

comment on macro internal.strip_space is 'A text without the white space around it: Unicode''s, as str.strip of Python.';
