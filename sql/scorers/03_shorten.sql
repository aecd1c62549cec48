-- Explanations are read in a terminal and stored a million times: what they quote is short.
create or replace macro internal.shorten(text) as
case when length(text) > 60 then left(text, 57) || '…' else text end;

comment on macro internal.shorten is 'The first 57 characters of a text and an ellipsis, or all of a text of at most 60.';
