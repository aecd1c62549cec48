-- White space at both ends is taken off: what str.strip() of Python takes for it; trim() alone knows only the blank.
create or replace macro internal.strip_space(text) as
regexp_replace(
    regexp_replace(text, '^[\s\v\p{Z}\x1c-\x1f\x{85}]+', ''), '[\s\v\p{Z}\x1c-\x1f\x{85}]+$', ''
);

comment on macro internal.strip_space is 'A text without the white space around it: Unicode''s, as str.strip of Python.';
