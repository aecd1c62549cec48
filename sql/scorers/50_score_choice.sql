-- The letter that the answer settles on against the target's.
create or replace macro score_choice(answer, target, letters) as
case
    when target is null then null
    when answer is null then make_score(0, null, 'no answer')
    else list_transform(
        [{'found': take_letter(strip_space(answer), letters), 'wanted': target_letter(strip_space(target), letters)}],
        lambda sides: case
            when sides.wanted is null
            then make_score(0, sides.found, 'the target is none of ' || letters || ': ' || shorten(target))
            when sides.found is null then make_score(0, null, 'no letter in the answer')
            when sides.found = sides.wanted then make_score(1, sides.found, 'the letter of the target')
            else make_score(0, sides.found, sides.found || ', not ' || sides.wanted)
        end
    )[1]
end;

comment on macro score_choice is '1 where the letter that the answer settles on (take_letter) is that of the target: a letter, bare or as in "(B)" and "B. text", or, where the letters have no digits, its 0-based place, as MMLU has it.';
