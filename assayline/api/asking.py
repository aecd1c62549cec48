"""One `generate` of an engine: prompts become requests as they are wanted, and rows become answers."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from assayline.api.answers import Answer, Ask, Content, make_answer
from assayline.records import Completion, Request
from assayline.requests.build import Prepared
from assayline.spec.evaluation import EvalSpec

IDLE_S = 0.02


class Asking:
    """What is in flight of one `generate`: which prompt and sample a request is."""

    def __init__(self, spec: EvalSpec, prepare: Callable[[EvalSpec, int, Ask], Prepared]) -> None:
        """`prepare` makes requests, or error rows, of the prompt with a number."""
        self.spec = spec
        self._prepare = prepare
        self._waiting: dict[str, tuple[int, int, Ask, list[int]]] = {}
        self._refused: deque[Completion] = deque()

    def read(self, prompts: Iterable[Ask | Content | None]) -> Iterator[Request | None]:
        """The prompts as requests, one by one; None where there is nothing now."""
        index = 0
        for prompt in prompts:
            if prompt is None:
                yield None
                continue
            ask = prompt if isinstance(prompt, Ask) else Ask(prompt)
            prepared = self._prepare(self.spec, index, ask)
            for request in prepared.requests:
                self._waiting[request.request_id] = (index, request.repeat_index, ask, request.prompt_token_ids)
            index += 1
            self._refused.extend(prepared.errors)
            if prepared.ready:
                yield from prepared.ready
            else:
                yield None  # so that what is refused is passed on before more is read

    def answer(self, completion: Completion) -> Answer:
        """The answer that a row is."""
        return make_answer(*self._waiting.pop(completion.request_id), completion)

    def take_refused(self) -> Iterator[Answer]:
        """Prompts that no engine could be given."""
        while self._refused:
            yield self.answer(self._refused.popleft())


def wait_for(requests: Iterator[Request | None]) -> Iterator[Request]:
    """Requests alone: waits where there is nothing now."""
    for request in requests:
        if request is None:
            time.sleep(IDLE_S)
        else:
            yield request
