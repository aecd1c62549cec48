"""ServerCore: an OpenAI-compatible server as an engine.

A running server is used as it is; without `engine.server.url`, our own is started (`process.py`) and ends with the
engine. A request is sent the moment it is handed over, and again if that may help (`client.py` decides). Each request
becomes one completion, whose times begin with its first sending.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from assayline.adapter import NAME
from assayline.engines.host.adapter import PROBE_SAMPLING, PROBE_TOKEN_IDS, proving
from assayline.engines.host.core import MediaPool
from assayline.engines.host.flight import score_option
from assayline.engines.host.server.client import (
    MALFORMED,
    REJECTED,
    TIMED_OUT,
    PromptLengths,
    ServedClient,
    ServedFailure,
    ServerWatch,
    allow_many_connections,
    choose_wait,
)
from assayline.engines.host.server.model import describe_server, find_model
from assayline.engines.host.server.process import ServeProcess
from assayline.engines.host.server.stream import RequestWriter, ServedAnswer, fill_messages
from assayline.engines.messages import Generate, Open, Opened
from assayline.engines.reasoning import split_reasoning
from assayline.errors import MediaError, ServerError, SpecError
from assayline.media.load import Hearing
from assayline.records import Completion, Json, Request, TelemetrySample

NEWER_LIMIT = "max_completion_tokens"
"""A server that refuses max_tokens names what it takes instead."""


class ServerCore:
    """One endpoint. Call `open` first."""

    def __init__(self, order: Open, serve: Callable[[Open], ServeProcess] = ServeProcess) -> None:
        """Keep `serve`, which starts our own server if the order names no URL."""
        self._order = order
        self._server = order.engine.server
        self._serve = serve
        self._process: ServeProcess | None = None
        self._live: set[_Call] = set()
        self._counting = threading.Lock()
        self._output_tokens = 0
        self._reached_s = time.monotonic()
        """When a request last reached the server."""
        self._media = MediaPool(order, Hearing(), fill_messages)
        self._client: ServedClient
        self._writer: RequestWriter
        self._lengths: PromptLengths
        self._opened: Opened
        self._watch: ServerWatch

    async def open(self) -> Opened:
        """Start our server, or connect to a running one. Raises SpecError, ServerError or EngineGoneError."""
        allow_many_connections()
        if self._server.url is None:
            self._process = self._serve(self._order)
            await self._process.start()
            self._client = ServedClient(self._server, self._process.url, self._process.key)
        else:
            self._client = ServedClient(self._server, self._server.url)
        model = await find_model(self._client, self._order.model, self._order.served_root)
        self._order.check_version(model.version)
        if self._order.adapter:
            model = replace(model, name=await self._find_adapter(model.name))
        self._writer = RequestWriter(
            self._server.endpoint,
            model.name,
            model.has_extensions,
            model.max_model_len,
            self._order.chat_kwargs,
        )
        self._writer.check(self._order.sampling)
        self._lengths = PromptLengths(self._client, self._writer)
        details, seats = describe_server(self._order, model, self._client.url), None
        if self._process is not None:
            chosen = self._process.read_sizes()
            details["max_num_seqs"] = of_one = self._order.engine.args.get("max_num_seqs") or chosen.get("max_num_seqs")
            if runner := chosen.get("model_runner"):
                details["model_runner"] = runner
            seats = of_one and of_one * (self._order.engine.args.get("data_parallel_size") or 1)
        self._opened = Opened(seats, model.max_model_len, details)
        self._watch = ServerWatch(self._client)
        return self._opened

    async def _find_adapter(self, base: str) -> str:
        """Return our server's name for the order's adapter once it is proven to act. Raises SpecError."""
        with proving(self._order) as found:
            for name in (base, NAME):
                body: dict[str, Json] = {"model": name, "prompt": PROBE_TOKEN_IDS, **PROBE_SAMPLING}
                found.append((await self._client.ask("/completions", body))["choices"][0]["prompt_logprobs"])
        return NAME

    async def rejoin(self, order: Open) -> Opened:
        """Serve another run. A server cannot drop its cached prefixes: see `HostedEngine.is_reusable`."""
        self._writer.check(order.sampling)
        self._order = order
        self._output_tokens = 0
        self._watch.count_from_here()
        return self._opened

    async def answer(self, message: Generate) -> Completion:
        """Send now, and again if that may help. Returns a result or an error row.

        Raises EngineGoneError if our own server is gone, ServerError if a foreign one was unreachable for the whole
        time of this request, SpecError if no request of this spec can succeed.
        """
        call = _Call(message)
        request = message.request
        self._writer.check_room(request)
        try:
            if request.media:
                request = await self._fill(call)
            body = self._writer.write(request)
            self._check_stops(request)
        except MediaError as error:
            return self._complete(call, error_kind=error.kind, error_message=str(error))
        except SpecError as error:
            return self._complete(call, error_kind="sampling_error", error_message=str(error))
        call.sent = time.monotonic()
        try:
            with self._counted(call):
                async with asyncio.timeout(self._server.timeout_s):
                    await self._ask(call, body)
            read = self._read(call)
        except TimeoutError:
            await self._check_server(call)
            words = f"No complete answer within {self._server.timeout_s:g} s"
            return self._complete(call, error_kind=TIMED_OUT, error_message=f"{words}{call.describe()}.")
        except ServedFailure as failure:
            return self._complete(call, error_kind=failure.kind, error_message=f"{failure}{call.describe()}")
        return self._complete(call, **read)

    async def warm_up(self, request: Request) -> str | None:
        """Answer one request outside the counters. Returns the error if it failed."""
        completion = await self.answer(Generate(request, self._order.clock.now_s(), 1))
        self._output_tokens = 0
        self._watch.count_from_here()
        return completion.error_message

    def sample(self) -> TelemetrySample:
        """Return the current counters, and the server's last own ones. It does not report its steps."""
        with self._counting:
            tokens = self._output_tokens + sum(call.answer.tokens for call in self._live)
            in_flight = len(self._live)
        order = self._order
        return TelemetrySample(
            worker=order.worker,
            engine_generation=order.engine_generation,
            at_s=order.clock.now_s(),
            engine_steps=None,
            in_flight_requests=in_flight,
            output_tokens=tokens,
            **self._watch.stats._asdict(),
        )

    async def close(self) -> None:
        """End the connections, and our own server."""
        await self._watch.stop()
        await self._client.close()
        if self._process is not None:
            await self._process.stop()

    async def _fill(self, call: "_Call") -> Request:
        """Return the request with its media in its messages. Raises MediaError, also if they make it too long."""
        request = call.message.request
        prepare, threads = self._media.prepare, self._media.threads
        prepared = await asyncio.get_running_loop().run_in_executor(threads, prepare, request)
        call.media = prepared.columns
        await self._lengths.check(prepared.form)
        return replace(request, messages=prepared.form.messages)

    async def _ask(self, call: "_Call", body: dict[str, Json]) -> None:
        """Try until an answer is complete or no try is left.

        Raises ServedFailure, EngineGoneError or ServerError. Only tries that reached the server count as `retries`.
        """
        while True:
            call.answer = ServedAnswer()
            try:
                await self._client.stream(self._writer.path, body, call.answer)
                self._reached_s = time.monotonic()
                return
            except ServedFailure as failure:
                if "max_tokens" in body and failure.kind == REJECTED and NEWER_LIMIT in str(failure):
                    self._writer = replace(self._writer, max_tokens_name=NEWER_LIMIT)
                    body[NEWER_LIMIT] = body.pop("max_tokens")
                    continue
                if self._process is not None and failure.may_be_death:
                    await self._check_process(failure)
                call.is_waiting = self._may_wait(call, failure)
                if not call.is_waiting:
                    self._reached_s = time.monotonic()
                    call.tries += 1
                if not failure.may_retry or call.answer.tokens or call.tries > self._server.retries:
                    raise
                wait_s = choose_wait(call.retries, failure)
                if time.monotonic() + wait_s >= call.sent + self._server.timeout_s:
                    await self._check_server(call)
                    raise
            await asyncio.sleep(wait_s)
            call.retries += 1

    def _may_wait(self, call: "_Call", failure: ServedFailure) -> bool:
        """Return whether to wait for an unreachable server, for as long as a request may take.

        False in an open loop, which also measures failures.
        """
        is_closed_loop = call.message.window_requests is not None
        return is_closed_loop and failure.is_away and failure.retry_after_s is None and self._server.retries > 0

    async def _check_process(self, failure: ServedFailure) -> None:
        """Raise EngineGoneError unless our own server proves healthy after a failure."""
        assert self._process is not None
        if failure.is_death:
            raise self._process.describe_death()
        await self._process.check_alive()

    async def _check_server(self, call: "_Call") -> None:
        """Raise EngineGoneError or ServerError if a call timed out for a reason that holds for every other request.

        An error row is final. A run that ends here can be resumed.
        """
        if self._process is not None:
            await self._process.check_alive()
        elif call.is_waiting and self._reached_s <= call.sent:
            raise ServerError(
                f"The server at {self._client.url} has been unreachable for {self._server.timeout_s:g} s "
                "(engine.server.timeout_s). Completed answers are kept. hint: start the server, then resume the run."
            )

    def _check_stops(self, request: Request) -> None:
        if self._order.reasoning is not None and request.sampling.get("stop"):
            raise SpecError(
                "A server looks for `stop` in the thinking as well, and would end the answer there. hint: remove "
                "`stop` or `reasoning`, or set engine.backend to offline or async, which look for it in the answer "
                "only."
            )

    def _read(self, call: "_Call") -> dict[str, Any]:
        """Return a completion's columns for the answer and its times. Raises ServedFailure for half a reading."""
        answer, request = call.answer, call.message.request
        order, at = self._order, self._order.clock.at_s
        text, reasoning = "".join(answer.texts), "".join(answer.reasoning).strip() or None
        if reasoning is not None:
            text = text.lstrip()
        elif (tags := order.find_reasoning(request)) is not None:
            reasoning, text = split_reasoning(text, tags)
        stamps, token_stamps = answer.stamps, answer.stamp_tokens()
        columns = {
            "first_token_at_s": at(stamps[0]) if stamps else None,
            "last_token_at_s": at(stamps[-1]) if stamps else None,
            "prompt_tokens": answer.count_usage("prompt_tokens") or len(request.prompt_token_ids) or None,
            "cached_tokens": answer.cached_tokens,
            "output_tokens": answer.output_tokens,
            "reasoning_tokens": answer.reasoning_tokens,
            "hidden_tokens": answer.hidden_tokens,
            "response_model": answer.model,
            **answer.drafts,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "text": text,
            "reasoning": reasoning,
            "output_token_ids": answer.token_ids or None,
            "token_at_s": None if token_stamps is None else [at(stamp) for stamp in token_stamps],
            "logprobs": answer.logprobs or None,
            "cumulative_logprob": answer.cumulative_logprob if answer.logprobs else None,
            "prompt_logprobs": answer.prompt_logprobs or None,
            **({"media_tokens": answer.media_tokens} if request.media else {}),
        }
        if request.option_tokens is None:
            return columns
        try:
            option = score_option(request, answer.prompt_logprobs[-request.option_tokens :])
        except (KeyError, ValueError):
            raise ServedFailure(MALFORMED, "The server left out log-probabilities of the prompt's tokens") from None
        return {**columns, "text": None, "output_token_ids": None, **option}

    def _complete(self, call: "_Call", **values: Any) -> Completion:
        message, order = call.message, self._order
        sent_at_s = order.clock.at_s(call.sent)
        return Completion(
            request_id=message.request.request_id,
            worker=order.worker,
            engine_generation=order.engine_generation,
            window_requests=message.window_requests,
            due_at_s=message.due_at_s,
            sent_at_s=sent_at_s,
            arrived_at_s=sent_at_s,
            finished_at_s=order.clock.now_s(),
            retries=call.retries,
            **call.media,
            **{"prompt_tokens": len(message.request.prompt_token_ids) or None, **values},
        )

    @contextlib.contextmanager
    def _counted(self, call: "_Call") -> Iterator[None]:
        """Count a call as in flight, and its tokens as they arrive, at no cost per token."""
        with self._counting:
            self._live.add(call)
        try:
            yield
        finally:
            with self._counting:
                self._live.discard(call)
                self._output_tokens += call.answer.tokens


class _Call:
    """One request in flight: its first sending, its tries, and the answer of the last one."""

    __slots__ = ("answer", "is_waiting", "media", "message", "retries", "sent", "tries")

    def __init__(self, message: Generate) -> None:
        self.message = message
        self.answer = ServedAnswer()
        self.media: dict[str, Json] = {}
        self.sent = time.monotonic()
        self.retries = 0
        self.tries = 0
        """Tries that reached the server and failed."""
        self.is_waiting = False
        """Whether the last try found no server."""

    def describe(self) -> str:
        """Return the tokens and retries of a failed call, as the end of its error message."""
        tokens = f" after {self.answer.tokens} tokens" if self.answer.tokens else ""
        tries = f" after {self.retries} retries" if self.retries else ""
        return f"{tokens}{tries}" if tokens or tries else ""
