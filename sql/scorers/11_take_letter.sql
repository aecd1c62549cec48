-- The letter that an answer settles on. The first rule that finds one decides.
create or replace macro internal.take_letter(text, letters) as
upper(coalesce(
    list_last(regexp_extract_all(
        text,
        '(?i:\b(?:answer|(?:correct|right|best)\s+(?:option|choice|letter))\b)'
        || '(?i:\s*(?:(?:is|would\s+be|should\s+be|must\s+be)\b\s*[:=]?|[:=-]))?(?i:\s*(?:option|choice|letter)\b)?'
        || '(?:[\s*_"“''‘`(\[{$]|\\boxed|\\text|\\mathrm)*([' || letters || '])(?:[^\p{L}\p{N}''’]|$)',
        1
    )),
    list_last(regexp_extract_all(
        text,
        '(?i:\b(?:answer|(?:correct|right|best)\s+(?:option|choice|letter))\b)'
        || '(?i:\s*(?:(?:is|would\s+be|should\s+be|must\s+be)\b\s*[:=]?|[:=-]))?(?i:\s*(?:option|choice|letter)\b)?'
        || '(?:[\s*_"“''‘`(\[{$]|\\boxed|\\text|\\mathrm)*([' || lower(letters) || '])(?:[.,;:!)\]}*"\n]|$)',
        1
    )),
    list_last(regexp_extract_all(text, '\\boxed\{(?:\\text\{|\\mathrm\{)?([' || letters || lower(letters) || '])\}', 1)),
    regexp_extract_all(
        text, '^[\s*_"“''‘`(\[{$]*([' || letters || lower(letters) || '])(?:[.:)\]}*"\n]|\s+[-–—:]|\s*$)', 1
    )[1],
    list_last(regexp_extract_all(text, '[(\[]([' || letters || lower(letters) || '])[)\]]', 1)),
    list_last(regexp_extract_all(text, '\b([' || letters || '])\b(?:[^''’]|$)', 1))
));

comment on macro internal.take_letter is 'The letter that a text settles on, in upper case; NULL if none is found. In this order: the last that is stated ("the answer is (B)", "Answer: B", "correct option: B"; a small letter only before a mark or the end), the last \boxed{B}, the one that the text begins with ("B", "B.", "(b) ..."), the last in brackets, the last capital that stands alone. So an article A counts only if nothing else does.';
