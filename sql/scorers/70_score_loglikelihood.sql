-- The likeliest option against the target's; of equally likely ones the first.
create or replace macro score_loglikelihood(options, option_logprobs, option_tokens, target_option, normalize) as
case
    when target_option is null then null
    when option_logprobs is null then make_score(0, null, 'no answer')
    else list_transform(
        [list_transform(
            option_logprobs,
            lambda logprob, place: logprob / case normalize
                when 'bytes' then nullif(strlen(strip_space(options[place])), 0)
                when 'tokens' then nullif(option_tokens[place], 0)
                else 1
            end
        )],
        lambda merits: list_transform(
            [list_position(merits, list_max(merits))],
            lambda best: case
                when best is null then make_score(0, null, 'no option has a likelihood')
                when best - 1 = target_option
                then make_score(1, options[best], 'the likeliest option is the target')
                else make_score(
                    0,
                    options[best],
                    shorten(options[best]) || ' (' || round(merits[best], 3) || ') is likelier than '
                    || shorten(options[target_option + 1]) || ' (' || round(merits[target_option + 1], 3) || ')'
                )
            end
        )[1]
    )[1]
end;

comment on macro score_loglikelihood is '1 where the option with the greatest sum of log-probabilities is the target''s. On request the sum is divided by the UTF-8 bytes of the option, without white space around it, or by its tokens. Of equally likely options the first counts. Undivided it is acc of lm-evaluation-harness; by bytes its acc_norm, but for characters beyond ASCII, of which it counts one each.';
