-- Numbers of LaTeX and of other scripts as plain ones, for find_numbers. A text without \, ^, {,} and decimal commas is
-- not rewritten.
create or replace macro internal.plain_numbers(text) as
list_transform(
    [internal.plain_signs(text)],
    lambda signed: list_transform(
        [case
            when contains(signed, '\') or contains(signed, '{,}')
            then regexp_replace(
                regexp_replace(
                    regexp_replace(
                        regexp_replace(
                            replace(replace(replace(signed, '{,}', ','), '\!', ''), '\$', '$'),
                            '(\d)\\[,:; ](\d{3})', '\1,\2', 'g'
                        ),
                        '(\d)\s*\\[dt]?frac', '\1 \\frac', 'g'
                    ),
                    '\\[dt]?frac\s*\{\s*(-?)\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}', '\1\2/\3', 'g'
                ),
                '\\[dt]?frac\s?(\d)\s?(\d)', '\1/\2', 'g'
            )
            else signed
        end],
        lambda typed: list_transform(
            [case
                when contains(typed, '^')
                then regexp_replace(
                    regexp_replace(typed, '\^\s?\{\s*([-+]?\d+)\s*\}', '^\1', 'g'),
                    '(\d)\s*(?:[×x*·]|\\times|\\cdot)\s*10\s?\^\s?([-+]?\d+)', '\1e\2', 'g'
                )
                else typed
            end],
            lambda raised: case
                when regexp_matches(raised, '\d,\d{1,2}(?:[^\d]|$)')
                then regexp_replace(
                    regexp_replace(raised, '(^|[^\d.,])(\d{1,3})\.(\d{3}),(\d{1,2})([^\d,]|$)', '\1\2\3.\4\5', 'g'),
                    '(^|[^\d.,])(\d+),(\d{1,2})([^\d,]|,[^\d]|$)', '\1\2.\3\4', 'g'
                )
                when regexp_matches(raised, '\d\.\d{3}\.\d{3}')
                then regexp_replace(
                    raised, '(^|[^\d.,])(\d{1,3})\.(\d{3})\.(\d{3})(?:\.(\d{3}))?([^\d.]|\.[^\d]|\.?$)', '\1\2\3\4\5\6', 'g'
                )
                else raised
            end
        )[1]
    )[1]
)[1];

comment on macro internal.plain_numbers is 'A text with numbers as a keyboard has them, after plain_signs: LaTeX''s \frac{1}{2} and \frac12 are 1/2, 1{,}234 and 1\,234 are 1,234, 2^{10} is 2^10, and 3 × 10^5 is 3e5. A single comma before one or two digits is a decimal comma: 3,5 is 3.5, 1.234,50 is 1234.50, and 1.234.567 is 1234567.';
