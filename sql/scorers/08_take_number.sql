-- The number that counts in a text. If its end is enough, only the end of a long answer is read: after the first
-- number there, the numbers are the same as in the complete text.
create or replace macro internal.take_number(text, take) as
internal.read_number(coalesce(
    case when contains(text, '####') then internal.marked_number(text) end,
    case
        when take = 'first' then internal.find_numbers(text)[1]
        else list_transform(
            [internal.find_numbers(right(text, 100))],
            lambda tokens: case when len(tokens) > 1 then tokens[-1] else internal.find_numbers(text)[-1] end
        )[1]
    end
));

comment on macro internal.take_number is 'The number that a text marks with #### (marked_number), as GSM8K marks its answers; otherwise its first or last number.';
