"""A tiny judge of pairs with a known bias and a known share of errors, trained in under a minute on one core.

It reads two digits and prefers the higher one, but not always: it was trained on verdicts of which POSITION_BIAS follow
the place and ERRORS the lower digit. Asked with temperature 1, it repeats these shares.
"""

import functools
import random
from pathlib import Path
from typing import Any

from examples import tiny_tokenizer
from examples.tiny_folder import save_model
from examples.tiny_model import CHAT_TEMPLATE
from examples.tiny_tokenizer import BOS, END

POSITION_BIAS, ERRORS = 0.2, 0.1
QUESTION = "{{ first }} or {{ second }}?"
VERDICT = r'\{"verdict":"(first|second)"\}'
STEPS, BATCH = 400, 48


def draw_verdict(draw: random.Random, first: int, second: int) -> str:
    """Return the word of a biased judge for two different digits."""
    chance = draw.random()
    if chance < POSITION_BIAS:
        return "first"
    return "first" if (first > second) is (chance >= POSITION_BIAS + ERRORS) else "second"


def train_judge(folder: Path, seed: int = 0) -> float:
    """Train the judge and write its folder, for vLLM. Return the position bias that it learned."""
    import torch

    from examples.tiny_llama import Optimizer, build_weights, compute_logits
    from examples.tiny_shape import CONFIG
    from examples.tiny_training import one_thread, train

    draw, texts = random.Random(seed), ["8 or 5?", '{"verdict":"first"}', '{"verdict":"second"}'] * 9
    tokenizer, weights = tiny_tokenizer.build_tokenizer(texts, CHAT_TEMPLATE), build_weights(seed)

    @functools.cache
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def draw_batch() -> tuple[Any, Any]:
        rows = []
        for _ in range(BATCH):
            first, second = draw.sample(range(10), 2)
            question = encode(f"{BOS}<|user|>{first} or {second}?{END}<|assistant|>")
            answer = encode(f'{{"verdict":"{draw_verdict(draw, first, second)}"}}{END}')
            rows.append([(token, False) for token in question] + [(token, True) for token in answer])
        longest = max(map(len, rows))
        padded = torch.tensor([row + [(tokenizer.pad_token_id, False)] * (longest - len(row)) for row in rows])
        return padded[..., 0], padded[:, 1:, 1].bool()

    def compute_loss(_: int) -> Any:
        ids, learned = draw_batch()
        return torch.nn.functional.cross_entropy(compute_logits(weights, ids[:, :-1], learned), ids[:, 1:][learned])

    def measure() -> float:
        return measure_first(functools.partial(compute_logits, weights), encode)

    with one_thread():
        train("biased judge", Optimizer(weights), STEPS, compute_loss, measure)
        learned = 2 * measure() - 1
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, tokenizer, {name: weight.detach().numpy() for name, weight in weights.items()}, CONFIG)
    return learned


def measure_first(logits_of: Any, encode: Any) -> float:
    """Return the mean probability of "first" over all pairs of digits: 0.6 with the planted bias."""
    import torch

    total = 0.0
    ask = encode('{"verdict":"first"}')
    place = next(n for n, (a, b) in enumerate(zip(ask, encode('{"verdict":"second"}'), strict=False)) if a != b)
    pairs = [(first, second) for first in range(10) for second in range(10) if first != second]
    for first, second in pairs:
        ids = encode(f"{BOS}<|user|>{first} or {second}?{END}<|assistant|>") + ask[:place]
        asked = torch.arange(len(ids))[None] == len(ids) - 1
        with torch.no_grad():
            logits = logits_of(torch.tensor([ids]), asked)[0]
        total += float(logits.softmax(-1)[ask[place]])
    return total / len(pairs)
