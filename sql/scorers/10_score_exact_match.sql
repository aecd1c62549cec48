-- The same text: white space around it never counts, case and ASCII punctuation on request.
-- list_transform over one element gives a name to a value that is used twice.
create or replace macro internal.score_exact_match(answer, target, ignore_case, ignore_punctuation) as
case
    when target is null then null
    when answer is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [{
            'answer': internal.reduce_text(answer, ignore_case, ignore_punctuation),
            'target': internal.reduce_text(target, ignore_case, ignore_punctuation)
        }],
        lambda sides: case
            when sides.answer = sides.target then internal.make_score(1, sides.answer, 'the same text as the target')
            else internal.make_score(0, sides.answer, 'not the target: ' || internal.shorten(sides.target))
        end
    )[1]
end;

comment on macro internal.score_exact_match is '1 if answer and target are the same text. Both are stripped of surrounding white space; with ignore_case in lower case (Unicode''s simple mapping); with ignore_punctuation without the 32 signs of string.punctuation of Python, after which white space is stripped again. Inner white space counts. As exact_match of lm-evaluation-harness, with its options of these names; it does not strip.';
