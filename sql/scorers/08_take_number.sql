-- The number that counts in a text.
create or replace macro take_number(text, take) as
list_transform(
    [find_numbers(case when contains(text, '####') then regexp_extract(text, '(?s).*####(.*)', 1) else text end)],
    lambda tokens: read_number(tokens[case when take = 'first' or contains(text, '####') then 1 else -1 end])
)[1];

comment on macro take_number is 'The first or last number of a text. Where there is #### in it, as GSM8K marks its answers, the first number behind the last ####.';
