-- The number that counts in a text. Of a long answer only the end is read where that is enough: behind the first number
-- of the end, the others are those of the whole text.
create or replace macro take_number(text, take) as
case
    when contains(text, '####') then read_number(find_numbers(regexp_extract(text, '(?s).*####(.*)', 1))[1])
    when take = 'first' then read_number(find_numbers(text)[1])
    else list_transform(
        [find_numbers(right(text, 100))],
        lambda tokens: read_number(case when len(tokens) > 1 then tokens[-1] else find_numbers(text)[-1] end)
    )[1]
end;

comment on macro take_number is 'The first or last number of a text. Where there is #### in it, as GSM8K marks its answers, the first number behind the last ####.';
