-- How far an engine's probabilities of a reference's answers are from those of the reference's engine: kl, kl_floor,
-- kl_ratio, same_top, nll_change, logprob_change, other_tokens, other_answers and first_other_token. Grain: one row
-- per answer.
from internal.reread_answer(getvariable('run_id'));
