"""An OpenAI-compatible server on loopback, without a model, that fails as told.

It runs in a thread with an event loop of its own, so that clients of this process and of others can be tested.
It does what a script says, a script per request, and nothing by chance.
"""

import asyncio
import contextlib
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ANSWER = ("One", " two", " three", " four")


@dataclass
class Script:
    """Script of one request. The default is a good answer of four tokens."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "no, thank you"
    """What an answer with another status says."""
    tokens: tuple[str, ...] = ANSWER
    tokens_per_event: int = 1
    thoughts: tuple[str, ...] = ()
    """Come before the tokens, as reasoning."""
    delay_s: float = 0.0
    """Before the first token."""
    break_after: int | None = None
    """So many events, then `break_with`."""
    break_with: str = "cut"
    """cut: the connection is reset; end: the stream ends in good order; otherwise the data of one more event."""
    reset: bool = False
    """The connection is reset before anything is answered."""
    content_type: str = "text/event-stream; charset=utf-8"
    line_end: str = "\n"
    has_usage: bool = True
    logprobs: Any = None
    prompt_logprobs: Any = None
    """Of an answer that is not streamed."""


@dataclass
class Received:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


class FakeServer:
    """Use `running()`; its properties may be changed meanwhile."""

    def __init__(self, *, is_vllm: bool = True, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.is_vllm = is_vllm
        self.key = key
        self.models: list[dict[str, Any]] = [
            {"id": "fake-model", "owned_by": "vllm", "max_model_len": 128} if is_vllm else {"id": "fake-model"}
        ]
        self.endpoints = ["/v1/completions", "/v1/chat/completions", "/v1/models"]
        self.scripts: deque[Script] = deque()
        self.default = Script()
        self.received: list[Received] = []
        self.version = "0.32.0"
        self.metrics: str | None = None
        """Its page of metrics; None: there is none."""
        self.metrics_read = 0
        self.count_tokens: Callable[[Any], int] | None = None
        """Of a body that `/tokenize` gets; None: there is no such endpoint."""
        self.measured: list[Any] = []
        """Bodies that it got."""
        self.in_flight = self.most_in_flight = 0
        self.port = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    @contextlib.contextmanager
    def running(self) -> Iterator["FakeServer"]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.start()
        try:
            yield self
        finally:
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    def start(self) -> None:
        """Listens, on the same port as before if there was one."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """Listens no longer, and resets every connection."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls, backlog=4096, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                received = await self._read(reader)
                await self._respond(received, writer)
                await writer.drain()
        self._connections.discard(writer)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Received:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Received(first.split()[1], headers, json.loads(body) if body else None)

    async def _respond(self, received: Received, writer: asyncio.StreamWriter) -> None:
        if self.key is not None and received.headers.get("authorization") != f"Bearer {self.key}":
            self._write_json(writer, 401, {"error": {"message": "Incorrect key."}})
        elif received.path == "/version" and self.is_vllm:
            self._write_json(writer, 200, {"version": self.version})
        elif received.path == "/metrics" and self.metrics is not None:
            self.metrics_read += 1
            self._write(writer, 200, self.metrics.encode(), "text/plain; version=0.0.4")
        elif received.path == "/tokenize" and self.count_tokens is not None:
            self.measured.append(received.body)
            self._write_json(writer, 200, {"count": self.count_tokens(received.body), "max_model_len": 128})
        elif received.path not in self.endpoints:
            self.metrics_read += received.path == "/metrics"
            self._write_json(writer, 404, {"error": {"message": "Not Found"}})
        elif received.path == "/v1/models":
            self._write_json(writer, 200, {"object": "list", "data": self.models})
        elif not received.body:
            self._write_json(writer, 400, {"error": {"message": "Field required", "code": 400}})
        else:
            self.received.append(received)
            script = self.scripts.popleft() if self.scripts else self.default
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await self._play(script, received, writer)
            finally:
                self.in_flight -= 1

    async def _play(self, script: Script, received: Received, writer: asyncio.StreamWriter) -> None:
        if script.reset:
            writer.transport.abort()
            raise ConnectionResetError
        if script.status != 200:
            error = {"error": {"message": script.message, "code": script.status}}
            self._write_json(writer, script.status, error, script.headers)
            return
        if not received.body.get("stream"):
            choice = {"index": 0, "text": "".join(script.tokens), "finish_reason": "length"}
            choice["prompt_logprobs"] = script.prompt_logprobs
            self._write_json(writer, 200, {"id": "1", "choices": [choice]})
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {script.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        await asyncio.sleep(script.delay_s)
        for number, event in enumerate(_list_events(script, received)):
            if number == script.break_after:
                await asyncio.sleep(0.05)  # what was sent before has arrived
                if script.break_with == "cut":
                    writer.transport.abort()
                    raise ConnectionResetError
                if script.break_with == "end":
                    break
                writer.write(_frame(script.break_with, script.line_end))
                break
            writer.write(_frame(event, script.line_end))
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    def _write_json(
        self, writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None
    ) -> None:
        self._write(writer, status, json.dumps(body).encode(), "application/json", headers)

    def _write(
        self, writer: asyncio.StreamWriter, status: int, data: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        lines = {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + data)


def _frame(event: str, line_end: str) -> bytes:
    data = f"data: {event}{line_end * 2}".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _list_events(script: Script, received: Received) -> Iterator[str]:
    is_chat = "chat" in received.path
    wants_ids = bool(received.body.get("return_token_ids"))
    parts = [("reasoning_content", (thought,)) for thought in script.thoughts]
    size = script.tokens_per_event
    parts += [("content", script.tokens[at : at + size]) for at in range(0, len(script.tokens), size)]
    if is_chat:
        yield json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    made = 0
    for number, (kind, tokens) in enumerate(parts):
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if number == len(parts) - 1 else None}
        choice |= {"delta": {kind: "".join(tokens)}} if is_chat else {"text": "".join(tokens)}
        if wants_ids:
            choice |= {"token_ids": list(range(100 + made, 100 + made + len(tokens))), "stop_reason": None}
        if script.logprobs:
            choice["logprobs"] = script.logprobs
        made += len(tokens)
        yield json.dumps({"id": "1", "choices": [choice]})
    if script.has_usage:
        usage = {
            "prompt_tokens": 3,
            "completion_tokens": made,
            "total_tokens": made + 3,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        yield json.dumps({"choices": [], "usage": usage})
    yield "[DONE]"
