"""Media beside the engine: loaded by threads, for requests in flight alone.

`vllm/media.py` and `server/media.py` say what becomes of what is loaded, and `vllm/preparers.py` has processes for it.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from assayline.engines.messages import Open
from assayline.media.load import Hearing, Loaded, MediaFacts, load_all
from assayline.records import Request

PREPARERS = min(8, max(1, len(os.sched_getaffinity(0)) - 1))
"""How many requests are prepared at once. Counted before vLLM binds its threads to cores; one core is the engine's."""

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Form]):
    """A request's media in the form that its engine takes."""

    form: Form
    columns: dict[str, Any]
    """Of the completion: what the media were, and `media_prepare_s`."""


class MediaPool(Generic[Form]):
    """Loads the media of requests and hands them to `convert`, in threads of its own."""

    def __init__(self, order: Open, hearing: Hearing, convert: Callable[[Request, list[Loaded]], Form]) -> None:
        self._order = order
        self._hearing = hearing
        self._convert = convert
        self.threads = ThreadPoolExecutor(PREPARERS, "media")

    def prepare(self, request: Request) -> Prepared[Form]:
        """Raises MediaError for media that cannot be used, and whatever `convert` raises."""
        started = time.monotonic()
        loaded, facts = load_all(request.media or (), self._order.media, self._hearing)
        form = self._convert(request, loaded)
        return Prepared(form, {**_columns(facts), "media_prepare_s": time.monotonic() - started})


def _columns(facts: MediaFacts) -> dict[str, Any]:
    return {name: value for name, value in asdict(facts).items() if value is not None}
