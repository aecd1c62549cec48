-- A number as find_numbers gives it, as a double and whether it was a percentage. NULL is a number too large or x/0.
create or replace macro internal.read_number(token) as
list_transform(
    [regexp_replace(regexp_replace(token, '(\d)\s+(\d+/)', '\1 \2'), '[^-+0-9.eE/^ ]', '', 'g')],
    lambda digits: {
        'number': case
            when contains(digits, '/')
            then list_transform(
                [regexp_extract(digits, '^\s*([-+]*)\s*(?:(\d+) )?([-+0-9.eE]+)/(\d+)', ['sign', 'whole', 'part', 'parts'])],
                lambda mixed: (
                    coalesce(try_cast(mixed.whole as double), 0)
                    + try_cast(mixed.part as double) / nullif(try_cast(mixed.parts as double), 0)
                ) * case when contains(mixed.sign, '-') then -1 else 1 end
            )[1]
            when contains(digits, '^')
            then try(pow(try_cast(split_part(digits, '^', 1) as double), try_cast(split_part(digits, '^', 2) as double)))
            else try_cast(replace(digits, ' ', '') as double)
        end,
        'is_percent': suffix(token, '%')
    }
)[1];

comment on macro internal.read_number is 'Value of a token of find_numbers: {number, is_percent}. Separators and currencies are left out, fractions divided, powers taken; a percentage keeps the number before its sign.';
