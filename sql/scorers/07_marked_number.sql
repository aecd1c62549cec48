-- GSM8K's answer mark. Models also write #### before headings, and number them.
create or replace macro internal.marked_number(text) as
list_transform(
    list_filter(
        regexp_extract_all(text, '####([^\n]*)', 1),
        lambda line: regexp_matches(internal.plain_numbers(line), '^[^\p{L}\d]*\d')
            and not regexp_matches(line, '^\s*\d{1,2}[.):]\s+\S')
    ),
    lambda line: internal.find_numbers(line)[1]
)[-1];

comment on macro internal.marked_number is 'The number that a text marks as its answer with ####, as GSM8K does: the first behind the last #### whose line begins with a number, signs and currencies apart. A line that begins like an item of a list ("#### 1. Compute") is a heading. NULL if no #### marks a number.';
