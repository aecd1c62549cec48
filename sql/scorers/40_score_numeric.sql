-- The number in the answer against the number in the target. 1e-15 is the rounding of doubles and no tolerance.
create or replace macro internal.score_numeric(answer, target, tolerance, relative_tolerance, take) as
case
    when target is null then null
    when answer is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [{'found': internal.take_number(answer, take), 'wanted': internal.take_number(target, 'last')}],
        lambda sides: case
            when sides.wanted.number is null
            then internal.make_score(0, internal.write_number(sides.found.number, sides.found.is_percent), 'no number in the target', sides.found.found_by)
            when sides.found.number is null then internal.make_score(0, null, 'no number in the answer')
            when internal.numbers_agree(sides.found.number, sides.wanted.number, tolerance, relative_tolerance)
                or (
                    sides.found.is_percent
                    and not sides.wanted.is_percent
                    and internal.numbers_agree(sides.found.number / 100, sides.wanted.number, tolerance, relative_tolerance)
                )
                or (
                    sides.wanted.is_percent
                    and not sides.found.is_percent
                    and internal.numbers_agree(sides.found.number * 100, sides.wanted.number, tolerance, relative_tolerance)
                )
            then internal.make_score(1, internal.write_number(sides.found.number, sides.found.is_percent), 'the number of the target', sides.found.found_by)
            else internal.make_score(
                0,
                internal.write_number(sides.found.number, sides.found.is_percent),
                internal.write_number(sides.found.number, sides.found.is_percent)
                || ', not '
                || internal.write_number(sides.wanted.number, sides.wanted.is_percent),
                sides.found.found_by
            )
        end
    )[1]
end;

comment on macro internal.score_numeric is '1 if the number taken from the answer is that of the target, |a − t| ≤ max(tolerance, relative_tolerance × |t|), compared as doubles. Numbers are found as by take_number; units and currencies around them do not count. If only one side is a percentage, 50% agrees with 50 and with 0.5. The last number of the target counts, or the one after #### (GSM8K).';
