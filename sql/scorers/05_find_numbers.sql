-- Numbers as people and models write them, from left to right. The pattern eats words, so that the digits of H2O and
-- GPT-4 do not count as numbers; the first group is empty then. A hyphen after a number is consumed with it: in 10-4
-- it is not a sign.
create or replace macro internal.find_numbers(text) as
list_filter(
    regexp_extract_all(
        internal.plain_numbers(text),
        '(?:[A-Za-z_](?:[A-Za-z_]|-?\d+(?:\.\d+)*)*(?:\^[-+]?\d+)?[-.]?[\s,;:]*)+'
        || '|([-+]?(?:[$€£¥₹]\s?)?[-+]?'
        || '(?:\d{1,3}(?:[,''’\x{a0}\x{2009}\x{202f}]\d{3})+(?:\.\d+)?|\d+\s+\d+/\d+|\d+\^[-+]?\d+|\d+(?:\.\d+)?|\.\d+)'
        || '(?:[eE][-+]?\d+)?(?:/\d+|\s?\\?%)?)(?:[A-Za-z)\]]?-|[^\d]|$)',
        1
    ),
    lambda token: token <> ''
);

comment on macro internal.find_numbers is 'The numbers in a text, as written: digits with a decimal point, thousands separated by commas, apostrophes or narrow blanks, a sign and a currency ($€£¥₹) before, an exponent, a power, %, or the denominator of a fraction behind; 1 1/2 is one number. LaTeX and other scripts are read (plain_numbers). Digits behind a Latin letter, or behind a letter and a hyphen, are part of a word (H2O, GPT-4); a hyphen after a digit, a unit of one letter or a bracket is not a minus.';
