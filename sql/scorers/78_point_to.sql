-- A key with any character in it: JSON pointers (RFC 6901) escape two.
create or replace macro internal.point_to(key) as
'/' || replace(replace(key, '~', '~0'), '/', '~1');

comment on macro internal.point_to is 'The JSON pointer to a key of an object.';
