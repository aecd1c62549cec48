-- Numbers as people and models write them, from left to right. The pattern eats words, so that the digits of H2O and
-- GPT-4 are not numbers and the hyphen of 10-4 is not a sign; the first group is empty then.
create or replace macro find_numbers(text) as
list_filter(
    regexp_extract_all(
        regexp_replace(
            regexp_replace(
                replace(replace(replace(text, '−', '-'), '{,}', ','), '\!', ''),
                '\\[dt]?frac\{(\d+)\}\{(\d+)\}', '\1/\2', 'g'
            ),
            '(\d)\s*(?:[×x*·]|\\times|\\cdot)\s*10\s?\^\s?\{?([-+]?\d+)\}?', '\1e\2', 'g'
        ),
        '[A-Za-z_](?:[A-Za-z_]|\d+(?:\.\d+)*)*[-.]?'
        || '|([-+]?(?:[$€£¥₹]\s?)?[-+]?'
        || '(?:\d{1,3}(?:[,''’\x{a0}\x{2009}\x{202f}]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)'
        || '(?:[eE][-+]?\d+)?(?:/\d+|\s?\\?%)?)(?:[)\]]?-|[^\d]|$)',
        1
    ),
    lambda token: token <> ''
);

comment on macro find_numbers is 'The numbers in a text, as written: digits with a decimal point, thousands separated by commas, apostrophes or narrow blanks, a sign and a currency ($€£¥₹) before, an exponent, %, or the denominator of a fraction behind. LaTeX''s \frac{1}{2}, {,} and × 10^n are read. Digits behind a Latin letter are part of a word; a hyphen behind a word, a digit or a bracket is no minus. A comma is never a decimal point.';
