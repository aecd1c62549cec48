"""vLLM's async engine, inside the engine host, with a time stamp for every token.

`AsyncLLM.generate` merges outputs that its consumer has not fetched yet, and merged outputs keep only the last stamp; a
loop with hundreds of consumers lags now and then. So outputs are taken where vLLM puts them, in the turn in which they
arrive: no task is woken up for a token, and a busy loop moves no stamp, since the stamps are those of the engine core's
steps. Works with vLLM 0.26 to 0.33.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from assayline.engines.host.adapter import PROBE_SAMPLING, PROBE_TOKEN_IDS, proving, read_probe
from assayline.engines.host.flight import Counters, Live
from assayline.engines.host.vllm.internals import (
    complete_args,
    count_steps,
    is_engine_dead,
    open_async,
    take_over_outputs,
)
from assayline.engines.host.vllm.preparers import Preparers
from assayline.engines.host.vllm.rows import (
    GAVE_UP,
    Adapters,
    VllmMedia,
    VllmRows,
    build_nested_configs,
    build_sampling_params,
    check_before_load,
    describe_engine,
    fork_preparers,
    require_reset,
)
from assayline.engines.messages import Generate, Open, Opened, Resolved
from assayline.records import Completion, Request, TelemetrySample


class AsyncCore:
    """One `AsyncLLM`; see `host.core.StreamCore`."""

    def __init__(self, order: Open, tell: Callable[[Resolved], object] = lambda resolved: None) -> None:
        """Keep `tell`, which gets the sizes that vLLM chooses, before the model loads."""
        self._order = order
        self._tell = tell
        self._rows = VllmRows(order)
        self._engine: Any = None
        self._in_flight = 0
        self._counters = Counters()
        self._media: VllmMedia | None = None
        self._preparers: Preparers | None = None
        self._adapters = Adapters()
        self._adapter: Any | None = None

    async def open(self) -> Opened:
        """Load the model in vLLM's own processes. Raises SpecError or DeviceError before loading."""
        order = self._order
        check_before_load(order)
        self._preparers = fork_preparers(order)
        args = {"model": order.model, **build_nested_configs(complete_args(order.engine.args))}
        self._engine = open_async(args, lambda sizes: self._tell(Resolved(sizes)))
        count_steps(self._engine, self._counters.add_steps)
        self._adapter = await self._find_adapter()
        return describe_engine(self._engine.vllm_config)

    async def rejoin(self, order: Open) -> Opened:
        """Serve another run. Raises SpecError for unusable sampling parameters."""
        build_sampling_params(order.sampling, record_token_times=False)
        self._order, self._rows = order, VllmRows(order)
        require_reset(await self._engine.reset_prefix_cache(reset_connector=True))
        await self._engine.reset_encoder_cache()
        await self._engine.reset_mm_cache()
        self._adapter = await self._find_adapter()
        self._counters.restart()
        return describe_engine(self._engine.vllm_config)

    async def _find_adapter(self) -> Any | None:
        """Return the order's adapter once it is proven to act. Raises SpecError."""
        if adapter := self._adapters.find(self._order):
            with proving(self._order) as found:
                found += [await self._probe(each) for each in (None, adapter)]
            self._counters.restart()
        return adapter

    async def _probe(self, adapter: Any | None) -> list[float]:
        params = build_sampling_params(PROBE_SAMPLING, record_token_times=False)
        outputs = [
            each
            async for each in self._engine.generate(
                {"prompt_token_ids": PROBE_TOKEN_IDS}, params, "probe", lora_request=adapter
            )
        ]
        return read_probe(outputs[-1])

    async def answer(self, message: Generate) -> Completion:
        """Hand the request to vLLM now, and return when it has finished. Raises the error that ends the engine."""
        arrived = time.monotonic()
        message = replace(message, sent_at_s=self._order.clock.at_s(arrived))
        live = Live(message, arrived, self._order.find_reasoning(message.request))
        self._in_flight += 1
        try:
            return await self._answer(live)
        except asyncio.CancelledError:
            await self._engine.abort(message.request.request_id)
            raise
        finally:
            self._in_flight -= 1

    async def warm_up(self, request: Request) -> str | None:
        """Generate one request to its end, outside the counters. Returns the error if it was refused."""
        row = await self.answer(Generate(request, 0.0, None))
        self._counters.restart()
        return row.error_message

    def sample(self) -> TelemetrySample:
        """Return the current counters. Safe in another thread."""
        return self._counters.sample(self._order, self._in_flight)

    async def close(self) -> None:
        """End vLLM's own processes."""
        self._engine.shutdown()

    async def _answer(self, live: Live) -> Completion:
        """Answer a request; retry once if vLLM gave it up for its media, and no token had arrived."""
        row = await self._ask(live)
        if row.error_kind == GAVE_UP and live.message.request.media and not live.token_ids:
            again = Live(live.message, live.arrived, live.reasoning)
            row = replace(await self._ask(again), retries=1)
        return row

    async def _ask(self, live: Live) -> Completion:
        request = live.message.request
        try:
            params = self._rows.build_params(request, live)
            prompt = await self._write_prompt(live)
            collector = await self._engine.add_request(request.request_id, prompt, params, lora_request=self._adapter)
            outputs = _Outputs(live, self._counters.add_tokens)
            outputs.divert(collector)
            last = await outputs.over  # vLLM may also refuse a request after it has taken it
        except Exception as error:
            if self._engine.errored or is_engine_dead(error):
                raise
            return self._rows.refuse(live, error)
        if not last.finished:  # one of the answer's own stops was found
            await self._engine.abort(request.request_id)
        row = self._rows.finish(live, last, time.monotonic())
        return replace(row, token_at_s=None) if outputs.has_merged else row

    async def _write_prompt(self, live: Live) -> dict[str, Any]:
        request = live.message.request
        if not request.media:
            return {"type": "token", "prompt_token_ids": request.prompt_token_ids}
        if self._media is None:
            self._media = VllmMedia(self._order, self._engine.renderer, self._engine.vllm_config, self._preparers)
        prepared = await asyncio.wrap_future(self._media.submit(request))
        live.media = prepared.columns
        return prepared.form


class _Outputs:
    """All outputs of vLLM for one request, taken as they arrive."""

    def __init__(self, live: Live, count: Any) -> None:
        self._live = live
        self._count = count
        self.over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """The last output, or the error that ended the engine."""
        self.has_merged = False
        """Whether outputs were merged before they could be taken, so that stamps of single tokens are unknown."""

    def divert(self, collector: Any) -> None:
        """Take the collector's output, mostly none, and all later ones in its place."""
        early = take_over_outputs(collector, self._take)
        if early is not None:
            self.has_merged = not isinstance(early, Exception) and len(early.outputs[0].token_ids) > 1
            self._take(early)

    def _take(self, output: Any) -> None:
        if self.over.done():
            return
        if isinstance(output, Exception):
            self.over.set_exception(output)
            return
        self._live.take(output)
        self._count(len(output.outputs[0].token_ids))
        if output.finished or self._live.is_stopped:
            self.over.set_result(output)
