-- The option that a target means.
create or replace macro internal.find_option(target, options) as
list_transform(
    [{'target': internal.strip_space(target), 'last': len(options) - 1}],
    lambda wanted: coalesce(
        list_position(list_transform(options, lambda option: internal.strip_space(option)), wanted.target) - 1,
        case
            when regexp_full_match(wanted.target, '\d{1,6}')
            then case when try_cast(wanted.target as integer) <= wanted.last then try_cast(wanted.target as integer) end
            when regexp_full_match(wanted.target, '[A-Za-z]') and ascii(upper(wanted.target)) - 65 <= wanted.last
            then ascii(upper(wanted.target)) - 65
        end
    )
)[1];

comment on macro internal.find_option is 'The 0-based option that a target means: the first that is the same text, white space around both apart; else its 0-based place, as a whole number; else its letter, A for the first. NULL if it is none.';
