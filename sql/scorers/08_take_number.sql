-- The number that counts in a text. Of a long answer only the end is read where that is enough: behind the first number
-- of the end, the others are those of the whole text.
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
