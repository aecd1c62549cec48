"""The request that warms an engine up: it compiles what is compiled late, and primes the prefix that prompts share."""

import itertools
from collections.abc import Mapping, Sequence

from assayline.records import Json, Request

MIN_WARM_UP_TOKENS = 32
"""A first prefill of a few tokens kills vLLM's CPU worker on AMX machines (SIGILL); 32 is safe everywhere."""

WARM_UP_OUTPUT_TOKENS = 4


def write_warm_up(
    first: Sequence[Request], sampling: Mapping[str, Json], worker: str, max_model_len: int | None
) -> tuple[Request, int]:
    """A request that belongs to no run, and how many leading tokens the `first` requests share.

    `sampling` is the spec's; `max_model_len` in tokens, None where a server does not say.
    """
    if first[0].media:
        return _write_bare(first[0], sampling, worker), 0
    room = None if max_model_len is None else max_model_len - WARM_UP_OUTPUT_TOKENS - 1
    prefix = shared_prefix([request.prompt_token_ids for request in first])
    filler = first[0].prompt_token_ids[:1] * (MIN_WARM_UP_TOKENS - len(prefix))
    messages = first[0].messages  # a server renders messages itself
    ids = (prefix + filler)[:room]
    return _write(worker, ids, messages, sampling), len(prefix)


def _write_bare(first: Request, sampling: Mapping[str, Json], worker: str) -> Request:
    """Text alone: a placeholder without its medium can kill an engine, and what sees has run when the engine started.

    The smallest id is of a byte, or begins the text; placeholders are among the last.
    """
    ids = [min(first.prompt_token_ids, default=0)] * MIN_WARM_UP_TOKENS if first.messages is None else []
    messages = None if first.messages is None else [{"role": "user", "content": "Hello"}]
    return _write(worker, ids, messages, sampling)


def _write(
    worker: str, ids: list[int], messages: list[dict[str, Json]] | None, sampling: Mapping[str, Json]
) -> Request:
    kept = {name: value for name, value in sampling.items() if name != "min_tokens"}
    return Request(
        request_id=f"warm-up-{worker}",
        prompt_id="",
        occurrence=0,
        repeat_index=0,
        prompt_token_ids=ids,
        sampling={**kept, "max_tokens": WARM_UP_OUTPUT_TOKENS},
        messages=messages,
    )


def shared_prefix(prompts: list[list[int]]) -> list[int]:
    """The longest common prefix of two or more prompts; empty for a single one, which shares with nobody."""
    if len(prompts) < 2:
        return []
    low, high = min(prompts), max(prompts)
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]
