"""Media for vLLM: one placeholder each in the token ids, and the pictures and sounds beside them.

vLLM's renderer expands the placeholders and makes tensors; what it returns goes to the engine as it is, so nothing is
processed twice. Its cache between the two processes is passed over (`skip_mm_cache`): where it is used, a request that
is cancelled before it arrives makes the next one with the same picture end in an error.
"""

import threading
from collections.abc import Callable
from typing import Any

from assayline.engines.host.media import MediaPool, Prepared
from assayline.engines.host.vllm.internals import find_feature_extractor, make_renderer, render_media
from assayline.engines.host.vllm.preparers import Preparers
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.media.load import Hearing, Loaded
from assayline.records import Request


class VllmMedia:
    """Makes engine inputs of requests with media, in processes where there are `preparers`, and else in threads."""

    def __init__(self, order: Open, renderer: Any, config: Any, preparers: Preparers | None = None) -> None:
        self._renderer = renderer
        self._config = config
        self._preparers = preparers
        self._hearing = _find_hearing(renderer)
        # One at a time, as in vLLM itself: processors and tokenizers of models are not made for threads.
        self._rendering = threading.Lock()
        self.pool: MediaPool[dict[str, Any]] = MediaPool(order, self._hearing, self._render)

    def submit(self, request: Request, done: Callable[[Prepared[dict[str, Any]] | Exception], object]) -> None:
        """Has a request's media prepared beside the engine. Any thread may call `done`: with the input, or an error."""

        def take(outcome: Prepared[dict[str, Any]] | Exception | None) -> None:
            if outcome is None:
                self._prepare_here(request, done)
            else:
                done(outcome)

        if self._preparers is None or not self._preparers.submit(request, self._config, take):
            self._prepare_here(request, done)

    def _prepare_here(self, request: Request, done: Callable[[Prepared[dict[str, Any]] | Exception], object]) -> None:
        def prepare() -> None:
            outcome: Prepared[dict[str, Any]] | Exception
            try:
                outcome = self.prepare(request)
            except Exception as error:  # decoders and processors of models raise anything
                outcome = error
            done(outcome)

        self.pool.threads.submit(prepare)

    def prepare(self, request: Request) -> Prepared[dict[str, Any]]:
        """The input that `add_request` takes. Raises MediaError, and what vLLM raises for media it cannot use."""
        prepared = self.pool.prepare(request)
        placed = prepared.form["mm_placeholders"]
        media_tokens = sum(place.length for places in placed.values() for place in places)
        return Prepared(prepared.form, {**prepared.columns, "media_tokens": media_tokens})

    def _render(self, request: Request, loaded: list[Loaded]) -> dict[str, Any]:
        prompt = {
            "prompt_token_ids": request.prompt_token_ids,
            "multi_modal_data": self._group(loaded, self._convert),
            # Digests of the content: vLLM's caches need not hash the pixels, and what is equal is known as equal.
            "multi_modal_uuids": self._group(loaded, lambda one: one.media["digest"]),
        }
        with self._rendering:
            rendered = render_media(self._renderer, prompt)
        expanded = len(rendered["prompt_token_ids"])
        max_model_len = self._config.model_config.max_model_len
        if expanded + 1 > max_model_len:
            raise MediaError(
                f"The prompt has {expanded} tokens with its media ({len(request.prompt_token_ids)} without), but the "
                f"context is {max_model_len} tokens (max_model_len), at least one of them for the answer. "
                "Shorten it, or make its images smaller with prompts.media.max_pixels.",
                kind="prompt_too_long",
            )
        return rendered

    def _convert(self, one: Loaded) -> Any:
        match one.media["kind"]:
            case "audio":
                return one.value, self._hearing.rate_hz
            case "video":
                return one.value.frames, one.value.metadata
        return one.value

    def _group(self, loaded: list[Loaded], read: Callable[[Loaded], Any]) -> dict[str, list[Any]]:
        grouped: dict[str, list[Any]] = {}
        for one in loaded:
            grouped.setdefault(one.media["kind"], []).append(read(one))
        return grouped


def fork_preparers(order: Open) -> Preparers | None:
    """Before the engine opens: the processes that will prepare its media, if it is to have any."""
    if not order.has_media:
        return None
    from vllm import LLM

    assert LLM  # what is imported before the fork is shared
    return Preparers(order, _make_prepare)


def _make_prepare(order: Open, config: Any) -> Callable[[Request], Prepared[dict[str, Any]]]:
    import torch

    torch.set_num_threads(1)  # the engine's own threads have the cores
    return VllmMedia(order, make_renderer(config), config).prepare


def _find_hearing(renderer: Any) -> Hearing:
    """Rate and longest sound of the model's own feature extractor; the usual ones where it has none."""
    extractor = find_feature_extractor(renderer)
    rate_hz, longest_s = getattr(extractor, "sampling_rate", None), getattr(extractor, "chunk_length", None)
    hearing = Hearing()
    return Hearing(
        rate_hz if isinstance(rate_hz, int) else hearing.rate_hz,
        float(longest_s) if isinstance(longest_s, (int, float)) else None,
    )
