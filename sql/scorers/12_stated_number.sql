-- The number that a text states as its answer. Of "6 × 7 = 42", the number behind the last = counts.
create or replace macro internal.stated_number(text) as
list_transform(
    [list_last(list_filter(
        list_transform(
            list_filter(coalesce(
                case
                    when contains(text, '\boxed')
                    then nullif(
                        list_filter(
                            regexp_extract_all(text, '\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}', 1),
                            lambda box: regexp_matches(box, '\S')
                        )[-1:],
                        []
                    )
                end,
                regexp_extract_all(
                    internal.plain_signs(text),
                    internal.before_statement()
                    || '(?i:\s*(?:about|approximately|around|roughly|exactly|only|etwa|rund|environ|aproximadamente|circa|约|約)\b)?'
                    || '([^\n]*?)(?:[.!?]["”*_)]*(?:\s|$)|[。！？]|</|",|\n|$)',
                    1
                )
            ), lambda words: regexp_matches(internal.plain_numbers(words), '^(?:[^\p{L}\d]|\\[a-z]+|[a-z]\s*=)*\d')),
            lambda words: regexp_extract(words, '([^=]*)$', 1)
        ),
        lambda words: regexp_matches(internal.plain_numbers(words), '^(?:[^\p{L}\d]|\\[a-z]+)*\d')
    ))],
    lambda words: internal.find_numbers(words)[1]
)[1];

comment on macro internal.stated_number is 'The number of the last \boxed{} or, without one, the one that directly follows words that announce an answer (before_statement); of an equation, the number behind its last =. NULL if nothing is stated as a number.';
