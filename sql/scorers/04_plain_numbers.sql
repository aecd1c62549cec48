-- Rewrite LaTeX numbers as plain ones for find_numbers. Most texts have no backslash and no ^, and are not searched.
create or replace macro internal.plain_numbers(text) as
list_transform(
    [replace(text, '−', '-')],
    lambda signed: list_transform(
        [case
            when contains(signed, '\') or contains(signed, '{,}')
            then regexp_replace(
                replace(replace(signed, '{,}', ','), '\!', ''), '\\[dt]?frac\{(\d+)\}\{(\d+)\}', '\1/\2', 'g'
            )
            else signed
        end],
        lambda typed: case
            when contains(typed, '^')
            then regexp_replace(
                typed, '(\d)\s*(?:[×x*·]|\\times|\\cdot)\s*10\s?\^\s?\{?([-+]?\d+)\}?', '\1e\2', 'g'
            )
            else typed
        end
    )[1]
)[1];

comment on macro internal.plain_numbers is 'A text with numbers as a keyboard has them: − is -, LaTeX''s \frac{1}{2} is 1/2, 1{,}234 is 1,234, and 3 × 10^5 is 3e5.';
