-- The likeliest option against the target's; of equally likely ones the first.
create or replace macro internal.score_loglikelihood(options, option_logprobs, option_tokens, target, normalize) as
case
    when target is null then null
    when option_logprobs is null then internal.make_score(0, null, 'no answer')
    else list_transform(
        [list_transform(
            option_logprobs,
            lambda logprob, place: logprob / case normalize
                when 'bytes' then nullif(strlen(internal.strip_space(options[place])), 0)
                when 'tokens' then nullif(option_tokens[place], 0)
                else 1
            end
        )],
        lambda merits: list_transform(
            [{
                -- list_position() would find NULL, too.
                'best': case when list_max(merits) is not null then list_position(merits, list_max(merits)) end,
                'wanted': internal.find_option(target, options) + 1
            }],
            lambda place: case
                when place.wanted is null
                then internal.make_score(0, options[place.best], 'the target is none of the options: ' || internal.shorten(target))
                when place.best is null then internal.make_score(0, null, 'no option has a likelihood')
                when place.best = place.wanted
                then internal.make_score(1, options[place.best], 'the likeliest option is the target')
                else internal.make_score(
                    0,
                    options[place.best],
                    internal.shorten(options[place.best]) || ' (' || round(merits[place.best], 3) || ') is likelier than '
                    || internal.shorten(options[place.wanted]) || ' (' || coalesce(round(merits[place.wanted], 3), 'NaN') || ')'
                )
            end
        )[1]
    )[1]
end;

comment on macro internal.score_loglikelihood is '1 if the option with the greatest sum of log-probabilities is the target''s (find_option). On request the sum is divided by the UTF-8 bytes of the option, without white space around it, or by its tokens. Of equally likely options the first counts. Undivided it is acc of lm-evaluation-harness; by bytes its acc_norm, except that acc_norm counts a character beyond ASCII as one.';
