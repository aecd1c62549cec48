-- Words that answer and target share.
create or replace macro internal.score_token_f1(answer, target) as
case
    when target is null then null
    when answer is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [{'answer': internal.squad_words(answer), 'target': internal.squad_words(target)}],
        lambda words: list_transform(
            [coalesce(
                list_sum(list_transform(
                    list_distinct(words.target),
                    lambda word: least(
                        len(list_filter(words.answer, lambda other: other = word)),
                        len(list_filter(words.target, lambda other: other = word))
                    )
                )),
                0
            )],
            lambda shared: internal.make_score(
                case
                    when len(words.answer) = 0 and len(words.target) = 0 then 1
                    -- 2 × precision × recall / (precision + recall), without a division by zero
                    else 2 * shared / (len(words.answer) + len(words.target))
                end,
                array_to_string(words.answer, ' '),
                shared || ' words shared, of ' || len(words.answer) || ' in the answer and ' || len(words.target)
                || ' in the target'
            )
        )[1]
    )[1]
end;

comment on macro internal.score_token_f1 is 'F1 over the words of answer and target (squad_words), each counted as often as it occurs: 2 × shared / (words of the answer + words of the target), which is the harmonic mean of precision and recall. 1 if both have no words. After SQuAD''s evaluation script (Rajpurkar et al. 2016, and 2018 for empty answers).';
