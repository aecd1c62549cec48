"""Training and evaluation of the tiny models: a learning-rate schedule, greedy answers, one thread."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from examples.tiny_llama import Optimizer
from examples.tiny_tokenizer import END


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: as fast as two at this size, with the same bytes on any number of cores, and robust on a busy
    machine, where two threads that wait for each other took five times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train(
    name: str,
    optimizer: Optimizer,
    steps: int,
    compute_loss: Callable[[int], Tensor],
    measure: Callable[[], float],
    every: int = 100,
) -> None:
    """Train with a warm-up of twenty steps, and decay to zero in the last two fifths.

    Finally, the weights are rounded to half precision, as they are stored in the repository.
    """
    started = time.monotonic()
    for step in range(1, steps + 1):
        loss = compute_loss(step)
        loss.backward()
        optimizer.step(min(1.0, step / 20, (steps + 1 - step) / (0.4 * steps)))
        if step == steps:
            optimizer.round()
        if step % every == 0 or step == steps:
            right, seconds = measure(), time.monotonic() - started
            print(f"{name}: step {step}/{steps} loss {loss:.3f} accuracy {right:.2f} {seconds:.0f} s", flush=True)


def share_answered(
    prompts: list[list[int]], answers: list[str], tokenizer: Any, logits_of: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """Return the share of prompts that greedy decoding answers exactly.

    The logits are computed for padded ids and a mask of the positions to predict.
    """
    ends = [answer + END for answer in answers]
    longest = max(len(tokenizer(end, add_special_tokens=False)["input_ids"]) for end in ends)
    for _ in range(longest):
        lengths = torch.tensor([len(ids) for ids in prompts])[:, None]
        places = torch.arange(int(lengths.max()))
        padded = torch.tensor([ids + [tokenizer.pad_token_id] * (len(places) - len(ids)) for ids in prompts])
        with torch.no_grad():
            chosen = logits_of(padded, places == lengths - 1).argmax(-1)
        prompts = [[*ids, token] for ids, token in zip(prompts, chosen.tolist(), strict=True)]
    texts = tokenizer.batch_decode([ids[-longest:] for ids in prompts])
    return sum(text.startswith(end) for text, end in zip(texts, ends, strict=True)) / len(ends)
