"""The scorer loglikelihood: the likeliest option against the target's."""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from assayline.scorers import Score, shorten


def score_loglikelihood(
    answer: str | None, target: str, row: dict[str, Any], normalize: Literal["none", "bytes", "tokens"] = "none"
) -> Score:
    """Return 1 if the option with the greatest sum of log-probabilities is the target's.

    `row` has `options`, `option_logprobs` and `option_tokens`. The sum is divided by the UTF-8 bytes of the option,
    without white space around it, or by its tokens. Of equal options the first counts. Undivided it is acc of
    lm-evaluation-harness; by bytes its acc_norm, except that acc_norm counts a character beyond ASCII as one.
    """
    options: list[str] = row["options"]
    wanted = find_option(target, options)
    if row["option_logprobs"] is None:
        return Score(0.0, None, "no answer")
    lengths = [1] * len(options)
    if normalize != "none":
        lengths = row["option_tokens"] if normalize == "tokens" else [len(one.strip().encode()) for one in options]
    merits = [
        None if logprob is None or math.isnan(logprob) or not length else logprob / length
        for logprob, length in zip(row["option_logprobs"], lengths, strict=True)
    ]
    known = [merit for merit in merits if merit is not None]
    best = merits.index(max(known)) if known else None
    likeliest = None if best is None else options[best]
    if wanted is None:
        return Score(0.0, likeliest, f"the target is none of the options: {shorten(target)}")
    if best is None:
        return Score(0.0, None, "no option has a likelihood")
    if best == wanted:
        return Score(1.0, likeliest, "the likeliest option is the target")
    first, second = (f"{shorten(options[place])} ({_round(merits[place])})" for place in (best, wanted))
    return Score(0.0, likeliest, f"{first} is likelier than {second}")


def find_option(target: str, options: Sequence[str]) -> int | None:
    """Return the 0-based option that a target means: its text, else its place, else its letter. None if it is none."""
    target, texts = target.strip(), [option.strip() for option in options]
    if target in texts:
        return texts.index(target)
    if re.fullmatch(r"[0-9]{1,6}", target):
        return int(target) if int(target) < len(options) else None
    if re.fullmatch("[A-Za-z]", target) and (place := ord(target.upper()) - ord("A")) < len(options):
        return place
    return None


def _round(merit: float | None) -> str:
    return "NaN" if merit is None else str(round(merit, 3))
