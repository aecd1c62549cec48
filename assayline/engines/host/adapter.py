"""The proof that an engine's LoRA adapter acts: it changes the log-probabilities of a probe."""

import contextlib
from collections.abc import Iterator
from typing import Any

from assayline.engines.messages import Open
from assayline.errors import SpecError
from assayline.records import Json

PROBE_TOKEN_IDS = list(range(16))
"""A prompt of tokens that every model has."""

PROBE_SAMPLING: dict[str, Json] = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0}


def read_probe(output: Any) -> list[float]:
    """Return the log-probabilities of the probe's tokens in vLLM's output."""
    return [entry.logprob for place in output.prompt_logprobs if place for entry in place.values()]


@contextlib.contextmanager
def proving(order: Open) -> Iterator[list[Any]]:
    """Take the log-probabilities of the probe, first of the base and then of the adapter, and compare them.

    Raises SpecError if they are equal, because the base would answer everything, and if vLLM refuses the adapter. Other
    errors end the engine: it may lack memory.
    """
    found: list[Any] = []
    try:
        yield found
    except (ValueError, TypeError) as error:
        raise SpecError(
            f"vLLM refuses the adapter {order.adapter} for {order.model}: {error}. hint: base_model_name_or_path in "
            "its adapter_config.json names the base that it was trained for."
        ) from error
    if found[0] == found[1]:
        raise SpecError(
            f"The adapter {order.adapter} changes nothing: the log-probabilities of {len(PROBE_TOKEN_IDS)} tokens are "
            "the same with and without it. hint: check that it was trained, for this base, and saved with its weights."
        )
