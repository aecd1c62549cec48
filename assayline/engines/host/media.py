"""Media in the engine's process: loaded by threads beside the engine, for requests in flight alone.

Decoding leaves Python's lock free, so that the engine steps meanwhile. `vllm/media.py` and `server/media.py` say what
becomes of what is loaded.
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

MOST_THREADS = 8
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
        self.threads = ThreadPoolExecutor(min(MOST_THREADS, max(1, (os.cpu_count() or 1) - 1)), "media")

    def prepare(self, request: Request) -> Prepared[Form]:
        """Raises MediaError for media that cannot be used, and whatever `convert` raises."""
        started = time.monotonic()
        loaded, facts = load_all(request.media or (), self._order.media, self._hearing)
        form = self._convert(request, loaded)
        return Prepared(form, {**_columns(facts), "media_prepare_s": time.monotonic() - started})


def _columns(facts: MediaFacts) -> dict[str, Any]:
    return {name: value for name, value in asdict(facts).items() if value is not None}
