-- The number that counts in a text, and how it was found. Without a statement only the end of a long answer is read: after
-- the first number there, the numbers are the same as in the complete text.
create or replace macro internal.take_number(text, take) as
list_transform(
    [coalesce(
        case when contains(text, '####') then internal.marked_number(text) end,
        case when take = 'last' then internal.stated_number(text) end
    )],
    lambda stated: list_transform(
        [case
            when stated is not null then [stated]
            when take = 'first' then internal.find_numbers(text)
            else list_transform(
                [internal.find_numbers(right(text, 100))],
                lambda tokens: case when len(tokens) > 1 then tokens else internal.find_numbers(text) end
            )[1]
        end],
        lambda tokens: list_transform(
            [internal.read_number(tokens[case when take = 'first' then 1 else -1 end])],
            lambda found: {
                'number': found.number,
                'is_percent': found.is_percent,
                'found_by': case
                    when stated is not null then 'stated' when len(tokens) = 1 then 'only' when len(tokens) > 1 then 'last'
                end
            }
        )[1]
    )[1]
)[1];

comment on macro internal.take_number is 'The number that a text gives as its answer, and how it was found: {number, is_percent, found_by}. `stated`: marked with #### (marked_number) or, if the last number is wanted, stated in words or a box (stated_number). `only`: the only number. `last`: the first or last of several.';
