-- The letter that an answer settles on, and how it was found. The first rule that finds one decides. Letters that are
-- listed together ("A and C", "A or B") or denied ("not B") do not count and are taken out first; so are an article A, a
-- pronoun I and the letters before options that are listed line by line.
create or replace macro internal.take_letter(text, letters) as
list_transform(
    [regexp_replace(
        regexp_replace(
            internal.plain_signs(text),
            '\b[' || letters || '](?:\)?(?:\s*[,/&]\s*|,?\s+(?:and|or|nor|und|oder|et|ou|y|o|e|и|или)\s+(?:maybe\s+|perhaps\s+)?)\(?[' || letters || ']\b)+',
            '', 'g'
        ),
        '(?:(?i:\b(?:not|cannot|nicht|pas)|n[''’]t)(?i:\s+(?:be|the|option|choice|letter|answer|la|die))*\s+|не\s+|不是)'
        || '[*_(]*[' || letters || ']\b',
        '-', 'g'
    )],
    lambda plain: list_transform(
        [{
            'stated': upper(coalesce(
                list_last(regexp_extract_all(
                    plain,
                    '\\boxed\s*\{(?:[\s({$*]|\\(?:text|mathrm|textbf|mathbf)\b)*'
                    || '([' || letters || lower(letters) || '])(?:[^\p{L}\p{N}''’]|$)',
                    1
                )),
                translate(
                    regexp_extract(
                        list_last(regexp_extract_all(
                            plain,
                            internal.before_statement()
                            || '(?i:\s*(?:option|choice|letter|opción|opção|opzione|Buchstabe|вариант|选项|選択肢|الخيار)\b)?'
                            || '(?:[\s*_"“„«''‘`(\[{$]|\\(?:boxed|text|mathrm|textbf|mathbf)\b)*'
                            || '(?:[' || letters || 'أبجدঅবডঢ](?:[^\p{L}\p{N}''’=]|[''’][^\p{L}]|$)|[' || lower(letters) || '](?:[.,;:!)\]}*"\n]|$))',
                            0
                        )),
                        '([\p{L}\p{N}])[^\p{L}\p{N}]*$', 1
                    ),
                    'أبجدঅবডঢ', 'ABCDABCD'
                ),
                list_last(regexp_extract_all(
                    plain,
                    '\b([' || letters || '])[\s)\]*_"''.]*\s(?i:is|was)\s+(?i:(?:the|only)\s+)*(?i:correct|right|best|answer)\b',
                    1
                ))
            )),
            'alone': upper(coalesce(
                list_last(regexp_extract_all(
                    plain,
                    '(?m)^[\s*_"“''‘`(\[{$]*([' || letters || lower(letters) || '])[\s.:)\]}*_"$`]*$',
                    1
                )),
                case
                    when len(regexp_extract_all(plain, '(?m)(?:^|[.:;]\s)[\s*_(]*[' || letters || '][.:)]')) < 2
                    then regexp_extract_all(
                        plain,
                        '^[\s*_"“''‘`(\[{$]*([' || letters || lower(letters) || '])(?:[.:)\]}*"\n]|\s+[-–—:]|\s*$)',
                        1
                    )[1]
                end
            )),
            'capitals': regexp_extract_all(
                regexp_replace(
                    regexp_replace(
                        case
                            when len(regexp_extract_all(plain, '(?m)^[\s*_(]*[' || letters || '][.:)][ \t]*[^\s*_]')) < 2
                            then plain
                            else regexp_replace(plain, '(?m)^[\s*_(]*[' || letters || '][.:)][ \t]*[^\s*_]', ' ', 'g')
                        end,
                        '\bA\s+(because|since|as|is|was|fits)\b', 'A. \1', 'g'
                    ),
                    '\b[AI]\s+\p{Ll}', '', 'g'
                ),
                '\b([' || letters || '])\b(?:[^''’]|$)',
                1
            )
        }],
        lambda found: {
            'letter': coalesce(found.stated, found.alone, list_last(found.capitals)),
            'found_by': case
                when found.stated is not null then 'stated'
                when found.alone is not null or len(list_distinct(found.capitals)) = 1 then 'only'
                when len(found.capitals) > 1 then 'last'
            end
        }
    )[1]
)[1];

comment on macro internal.take_letter is 'The letter that a text settles on, in upper case, and how it was found: {letter, found_by}. `stated`: the last in \boxed{B}, else behind words that announce an answer (before_statement: "the answer is (B)", "Answer: b", "答案是B", a JSON key or tag), else before "is correct". `only`: the last line that is a letter, else the one that the text begins with ("B. Paris") unless it lists several, else the only capital. `last`: the last of several capitals. An article A, a pronoun I, letters that are listed together ("A or B") or denied ("not B") and those before the options of a list, one per line, never count. NULL if none is found.';
