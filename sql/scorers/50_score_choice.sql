-- The letter that the answer settles on against the target's.
create or replace macro internal.score_choice(answer, target, letters) as
case
    when target is null then null
    when answer is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [{'found': internal.take_letter(internal.strip_space(answer), letters), 'wanted': internal.target_letter(internal.strip_space(target), letters)}],
        lambda sides: case
            when sides.wanted is null
            then internal.make_score(0, sides.found.letter, 'the target is none of ' || letters || ': ' || internal.shorten(target), sides.found.found_by)
            when sides.found.letter is null then internal.make_score(0, null, 'no letter in the answer')
            when sides.found.letter = sides.wanted then internal.make_score(1, sides.found.letter, 'the letter of the target', sides.found.found_by)
            else internal.make_score(0, sides.found.letter, sides.found.letter || ', not ' || sides.wanted, sides.found.found_by)
        end
    )[1]
end;

comment on macro internal.score_choice is '1 if the letter that the answer settles on (take_letter) is that of the target: a letter, bare or as in "(B)" and "B. text", or, if the letters have no digits, its 0-based place, as MMLU has it.';
