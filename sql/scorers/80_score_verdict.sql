-- A judge's verdict as a number. A judge of pairs sees each pair twice, in both orders: the value is for one answer.
create or replace macro internal.score_verdict(answer, is_swapped, field, reason, verdicts, scale) as
case
    when answer is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [internal.read_verdict(answer, field, reason)],
        lambda told: case
            when told is null then internal.make_score(0, null, 'not a JSON object')
            when told.verdict is null then internal.make_score(0, null, 'no ' || field || ' in the JSON object')
            else list_transform(
                [case
                    when len(scale) = 2 then {
                        'word': internal.write_number(try_cast(told.verdict as double), false),
                        'value': case
                            when try_cast(told.verdict as double) between scale[1] and scale[2]
                            then (try_cast(told.verdict as double) - scale[1]) / (scale[2] - scale[1])
                        end
                    }
                    else list_transform(
                        [list_filter(map_keys(verdicts), lambda word: lower(word) = lower(told.verdict))[1]],
                        lambda word: {'word': word, 'value': map_extract(verdicts, word)[1]}
                    )[1]
                end],
                lambda found: case
                    when found.value is null
                    then internal.make_score(0, null, 'an unknown verdict: ' || internal.shorten(told.verdict))
                    else internal.make_score(
                        case when is_swapped then 1 - found.value else found.value end, found.word, told.reason
                    )
                end
            )[1]
        end
    )[1]
end;

comment on macro internal.score_verdict is 'The verdict in a judge''s JSON object (read_verdict) as a value from 0 to 1. verdicts maps each verdict to its value, whatever its case; if scale has two numbers, the verdict is a number from the first to the second, and its value grows evenly from 0 to 1. is_swapped: the judge saw the second run''s answer first, so the value is 1 minus that. The explanation is the judge''s reason. An unreadable verdict has the value 0 and nothing extracted.';
