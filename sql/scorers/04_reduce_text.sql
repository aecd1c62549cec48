-- Text that exact_match compares.
create or replace macro internal.reduce_text(text, ignore_case, ignore_punctuation) as
list_transform(
    [case when ignore_case then lower(text) else text end],
    lambda cased: internal.strip_space(
        case when ignore_punctuation then regexp_replace(cased, '[[:punct:]]', '', 'g') else cased end
    )
)[1];

comment on macro internal.reduce_text is 'A text without surrounding white space and, on request, in lower case and without ASCII punctuation.';
