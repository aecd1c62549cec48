-- A number as find_numbers gives it, as a double and whether it was a percentage. NULL is a number too large or x/0.
create or replace macro internal.read_number(token) as
list_transform(
    [regexp_replace(token, '[^-+0-9.eE/]', '', 'g')],
    lambda digits: {
        'number': case
            when contains(digits, '/')
            then try_cast(split_part(digits, '/', 1) as double) / nullif(try_cast(split_part(digits, '/', 2) as double), 0)
            else try_cast(digits as double)
        end,
        'is_percent': suffix(token, '%')
    }
)[1];

comment on macro internal.read_number is 'Value of a token of find_numbers: {number, is_percent}. Separators and currencies are left out, fractions divided; a percentage keeps the number before its sign.';
