"""vLLM's offline engine, inside the engine host. Only the modules of this folder import vLLM.

It drives `vllm.LLM` one step at a time (`add_request`, `step`) instead of calling `LLM.generate`, so that requests are
added while others finish, and a bad request fails alone. Works with vLLM 0.26 to 0.33.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from assayline.engines.host.adapter import PROBE_SAMPLING, PROBE_TOKEN_IDS, proving, read_probe
from assayline.engines.host.core import Prepared
from assayline.engines.host.flight import Counters, Live
from assayline.engines.host.vllm.internals import (
    adapting,
    complete_args,
    count_steps,
    finish_begun,
    is_engine_dead,
    shut_down,
)
from assayline.engines.host.vllm.rows import (
    Adapters,
    VllmMedia,
    VllmRows,
    build_sampling_params,
    describe_engine,
    fork_preparers,
    require_reset,
)
from assayline.engines.messages import Generate, Open, Opened, Resolved
from assayline.records import Completion, Request, TelemetrySample


@dataclass(frozen=True, slots=True)
class Ready:
    """A request whose media are prepared, or could not be."""

    live: Live
    outcome: "Future[Prepared[dict[str, Any]]]"


class VllmCore:
    """An engine that takes requests and makes steps. Not thread-safe: one thread drives it."""

    def __init__(self, order: Open, tell: Callable[[Resolved], object] = lambda resolved: None) -> None:
        """Load the model; `tell` gets the sizes that vLLM chooses before that."""
        from vllm import LLM

        self._order = order
        self._rows = VllmRows(order)
        self._preparers = fork_preparers(order)
        with adapting(lambda sizes: tell(Resolved(sizes))):
            self._llm = LLM(model=order.model, **{**complete_args(order.engine.args), "disable_log_stats": False})
        self._engine = self._llm.llm_engine
        self._live: dict[str, Live] = {}
        self._media: VllmMedia | None = None
        self._preparing: dict[str, Live] = {}
        self.put_ready: Callable[[Ready], object] = self.add_ready
        """Called in any thread with a prepared request; must pass it to `add_ready` in the engine's thread."""
        self._counters = Counters()
        count_steps(self._engine, self._counters.add_steps)
        self._opened = describe_engine(self._engine.vllm_config)
        self._adapters = Adapters()
        self._adapter = self._find_adapter()

    @property
    def in_flight(self) -> int:
        """Number of requests that were added and have not finished."""
        return len(self._live) + len(self._preparing)

    @property
    def can_step(self) -> bool:
        """Return True if the engine has a request to work on."""
        return bool(self._live)

    def sample(self) -> TelemetrySample:
        """Return the current counters. Safe in another thread."""
        return self._counters.sample(self._order, self.in_flight)

    def describe(self) -> Opened:
        """Return what the engine resolved: sizes, versions, device."""
        return self._opened

    def rejoin(self, order: Open) -> Opened:
        """Serve another run. Nothing may be in flight. Raises SpecError for unusable sampling parameters."""
        build_sampling_params(order.sampling, record_token_times=False)
        self._order, self._rows = order, VllmRows(order)
        require_reset(self._engine.reset_prefix_cache(reset_connector=True))
        self._engine.reset_encoder_cache()
        self._engine.reset_mm_cache()
        self._adapter = self._find_adapter()
        self._counters.restart()
        return self._opened

    def add(self, message: Generate) -> Completion | None:
        """Hand a request to the scheduler, or have its media prepared.

        Returns an error row if vLLM refuses it.
        """
        live = Live(message, time.monotonic(), self._order.find_reasoning(message.request))
        if message.request.media:
            self._prepare(live)
            return None
        return self._add(live, {"type": "token", "prompt_token_ids": live.message.request.prompt_token_ids})

    def _find_adapter(self) -> Any | None:
        """Return the order's adapter once it is proven to act. Raises SpecError."""
        if adapter := self._adapters.find(self._order):
            with proving(self._order) as found:
                found += [self._probe(each) for each in (None, adapter)]
            self._counters.restart()
        return adapter

    def _probe(self, adapter: Any | None) -> list[float]:
        params = build_sampling_params(PROBE_SAMPLING, record_token_times=False)
        self._engine.add_request("probe", {"prompt_token_ids": PROBE_TOKEN_IDS}, params, lora_request=adapter)
        outputs: list[Any] = []
        while self._engine.has_unfinished_requests():
            outputs += self._engine.step()
        return read_probe(outputs[-1])

    def add_ready(self, ready: "Ready") -> Completion | None:
        """Hand a request with prepared media to the scheduler. Returns an error row if they cannot be used."""
        live = ready.live
        request_id = live.message.request.request_id
        if self._preparing.get(request_id) is not live:  # aborted meanwhile
            return None
        del self._preparing[request_id]
        live.arrived = time.monotonic()
        try:
            prepared = ready.outcome.result()
        except Exception as error:
            return self._rows.refuse(live, error)
        live.media = prepared.columns
        return self._add(live, prepared.form)

    def _prepare(self, live: Live) -> None:
        media = self._find_media()
        self._preparing[live.message.request.request_id] = live
        media.submit(live.message.request).add_done_callback(lambda outcome: self.put_ready(Ready(live, outcome)))

    def _find_media(self) -> VllmMedia:
        if self._media is None:
            self._media = VllmMedia(self._order, self._llm.renderer, self._engine.vllm_config, self._preparers)
        return self._media

    def _add(self, live: Live, prompt: dict[str, Any]) -> Completion | None:
        request = live.message.request
        try:
            params = self._rows.build_params(request, live)
            self._engine.add_request(request.request_id, prompt, params, lora_request=self._adapter)
        except Exception as error:
            if is_engine_dead(error):
                raise
            self._engine.abort_request([request.request_id])  # vLLM may have registered it before it refused it
            return self._rows.refuse(live, error)
        self._live[request.request_id] = live
        return None

    def step(self) -> list[Completion]:
        """Make one engine step. Returns the completions that it finished."""
        finished = []
        outputs = self._engine.step()
        now = time.monotonic()
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            live.take(output)
            if output.finished or live.is_stopped:
                del self._live[output.request_id]
                self._counters.add_tokens(len(live.token_ids))
                finished.append(self._rows.finish(live, output, now))
                if not output.finished:
                    self._engine.abort_request([output.request_id])
        if not self._live:
            finish_begun(self._engine)
        return finished

    def abort_all(self) -> None:
        """Abort everything in flight."""
        self._preparing.clear()
        self._engine.abort_request(list(self._live))
        self._live.clear()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        finish_begun(self._engine)

    def warm_up(self, request: Request) -> str | None:
        """Generate one request to its end, and reset the counters. Returns the error if it was refused."""
        refused = self.add(Generate(request, 0.0, 1))
        while self._live:
            self.step()
        self._counters.restart()
        return refused.error_message if refused else None

    def close(self) -> None:
        """End vLLM's own processes, if it has any."""
        shut_down(self._engine)
