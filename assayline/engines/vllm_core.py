"""vLLM's offline engine, inside the engine host. Only the modules named vllm_* and `async_core.py` import vLLM.

It drives `vllm.LLM` one step at a time (`add_request`, `step`) instead of calling `LLM.generate`, so that the engine is
fed while others finish, and a bad request fails alone. Works with vLLM 0.26 to 0.33.
"""

import time

from assayline.engines.live import Live
from assayline.engines.vllm_facts import describe_engine
from assayline.engines.vllm_rows import VllmRows
from assayline.engines.wire import Generate, Open, Opened
from assayline.errors import SpecError
from assayline.records import Completion, Request, TelemetrySample


class VllmCore:
    """An engine that takes requests and makes steps. Not thread-safe: one thread drives it."""

    def __init__(self, order: Open) -> None:
        from vllm import LLM

        self._order = order
        self._rows = VllmRows(order)
        self._llm = LLM(model=order.model, **{**order.args, "disable_log_stats": False})
        self._engine = self._llm.llm_engine
        self._live: dict[str, Live] = {}
        self.steps = 0
        self.output_tokens = 0

    @property
    def in_flight(self) -> int:
        """Requests that were added and have not finished."""
        return len(self._live)

    def sample(self) -> TelemetrySample:
        """The counters now. Read by another thread: each is a number of its own, so none is torn."""
        order = self._order
        return TelemetrySample(
            order.worker, order.engine_generation, order.clock.now_s(), self.steps, self.in_flight, self.output_tokens
        )

    def describe(self) -> Opened:
        """What the engine resolved: sizes, versions, device."""
        return describe_engine(self._engine.vllm_config)

    def add(self, message: Generate) -> Completion | None:
        """Hands a request to the scheduler. Returns an error row if vLLM refuses it."""
        live = Live(message, time.monotonic(), self._order.reasoning)
        request = message.request
        try:
            params = self._rows.build_params(request, live)
            prompt = {"type": "token", "prompt_token_ids": request.prompt_token_ids}
            self._engine.add_request(request.request_id, prompt, params)
        except Exception as error:
            if type(error).__name__ == "EngineDeadError":
                raise
            return self._rows.refuse(live, error)
        self._live[request.request_id] = live
        return None

    def step(self) -> list[Completion]:
        """One engine step. Returns what it finished."""
        outputs = self._engine.step()
        now = time.monotonic()
        self.steps += 1
        finished = []
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            live.take(output)
            if output.finished or live.is_stopped:
                del self._live[output.request_id]
                self.output_tokens += len(live.token_ids)
                finished.append(self._rows.finish(live, output, now))
                if not output.finished:
                    self._engine.abort_request([output.request_id])
        return finished

    def abort_all(self) -> None:
        """Forgets everything in flight."""
        self._engine.abort_request(list(self._live))
        self._live.clear()
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def warm_up(self, request: Request) -> None:
        """Generates one request to its end and sets the counters back. Raises what the engine raises."""
        refused = self.add(Generate(request, 0.0, 1))
        while self._live:
            self.step()
        self.steps = self.output_tokens = 0
        if refused is not None:
            raise SpecError(f"The warm-up request was refused: {refused.error_message}")

    def close(self) -> None:
        """Ends vLLM's own processes, where it has any."""
        self._engine.engine_core.shutdown()
