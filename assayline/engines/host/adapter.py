"""The proof that an engine's LoRA adapter acts: it changes the log-probabilities of a probe."""

from collections.abc import Sequence
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


def check_adapter(order: Open, base: Sequence[Any], adapted: Sequence[Any]) -> None:
    """Raise SpecError if the probe's log-probabilities are those of the base, which would answer everything then."""
    if base == adapted:
        raise SpecError(
            f"The adapter {order.adapter} changes nothing: the log-probabilities of {len(PROBE_TOKEN_IDS)} tokens are "
            "the same with and without it. hint: check that it was trained, for this base, and saved with its weights."
        )


def explain_adapter(order: Open, error: Exception) -> SpecError:
    """Return the error for an adapter that vLLM cannot use."""
    return SpecError(
        f"vLLM cannot use the adapter {order.adapter} with {order.model}: {error}. hint: the engine's log has the "
        "cause; base_model_name_or_path in its adapter_config.json names the base that it was trained for."
    )
