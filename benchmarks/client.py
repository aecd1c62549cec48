"""CPU time of the client of a server, per request and per streamed token.

    python -m benchmarks.client [--requests 2000] [--streams 64] [--tokens 256] [--rounds 3]

The server, a process of its own, answers at once and streams one token per stream every 10 ms, each in an event of its
own with vLLM's fields. Two clients alternate in one process: `assayline` is `ServerCore.answer` from the request to the
completion; `aiohttp` posts the same body, cuts lines, and parses each event with `json.loads`, and keeps nothing. A
token's cost is that of long answers less that of as many answers of one token. The last line is JSON: the medians.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import aiohttp

from assayline.clock import RunClock
from assayline.engines.host.server.core import ServerCore
from assayline.engines.messages import Generate, Open
from assayline.records import Request
from assayline.spec.engine import EngineSpec, ServerSpec

TICK_S = 0.01
PROMPT = list(range(500))
SAMPLING = {"temperature": 0, "seed": 1}
IN_FLIGHT = 16
"""Requests of one token at a time."""

Ask = Callable[[int], Awaitable[int]]
"""Ask for that many tokens. Returns how many came."""


class Stream(asyncio.Protocol):
    """One connection of the server."""

    writing: ClassVar[set["Stream"]] = set()
    transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        self.transport, self.data, self.left = transport, b"", 0

    def connection_lost(self, error: Exception | None) -> None:
        """Stop writing."""
        self.writing.discard(self)

    def data_received(self, data: bytes) -> None:
        """Answer once a request is complete."""
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if not found or len(body) < int(lines.get(b"content-length", 0)):
            return
        self.data, method, path = b"", *head.split()[:2]
        if method == b"GET" or body == b"{}":
            cards = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}).encode()
            status = b"404 No" if b"metrics" in path else b"400 No" if body else b"200 OK"
            self.transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(cards), cards))
            return
        self.left = json.loads(body)["max_tokens"]
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if self.left == 1:
            self.write_token()
        else:
            self.writing.add(self)

    def write_token(self) -> None:
        """Write one event; after the last one also the usage and the end."""
        self.left -= 1
        choice = {"index": 0, "text": " word", "logprobs": None, "stop_reason": None, "token_ids": [7],
                  "finish_reason": None if self.left else "length", "prompt_token_ids": None}  # fmt: skip
        event = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        data = frame(json.dumps(event))
        if not self.left:
            self.writing.discard(self)
            usage = {"prompt_tokens": len(PROMPT), "completion_tokens": 1, "total_tokens": len(PROMPT) + 1}
            data += frame(json.dumps({**event, "choices": [], "usage": usage})) + frame("[DONE]") + b"0\r\n\r\n"
        self.transport.write(data)


def frame(event: str) -> bytes:
    """Return an event as one chunk of a response."""
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve() -> None:
    """Print the port, and answer until killed."""
    server = await asyncio.get_running_loop().create_server(Stream, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        await asyncio.sleep(TICK_S)
        for stream in list(Stream.writing):
            stream.write_token()


def ask_by_core(core: ServerCore) -> Ask:
    """Return our client."""

    async def ask(tokens: int) -> int:
        request = Request(
            request_id="r",
            prompt_id="p",
            occurrence=0,
            repeat_index=0,
            prompt_token_ids=PROMPT,
            sampling={**SAMPLING, "max_tokens": tokens},
        )
        completion = await core.answer(Generate(request, 0.0, None))
        if completion.error_kind:
            sys.exit(f"{completion.error_kind}: {completion.error_message}")
        return len(completion.token_at_s or completion.output_token_ids or ())

    return ask


def ask_by_aiohttp(session: aiohttp.ClientSession, url: str) -> Ask:
    """Return the least client."""

    async def ask(tokens: int) -> int:
        body = {"model": "m", "prompt": PROMPT, "stream": True, **SAMPLING, "max_tokens": tokens}
        count = 0
        async with session.post(url, data=json.dumps(body).encode()) as response:
            async for chunk in response.content.iter_any():
                for line in chunk.split(b"\n"):
                    if line.startswith(b"data: {"):
                        count += len(json.loads(line[6:])["choices"])
        return count

    return ask


async def spend(ask: Ask, count: int, tokens: int, in_flight: int) -> float:
    """Return this process's CPU seconds for `count` answers."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            if (came := await ask(tokens)) != tokens:
                sys.exit(f"{came} of {tokens} tokens came")

    started = time.process_time()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return time.process_time() - started


async def measure(url: str, requests: int, streams: int, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians in microseconds, by client."""
    engine = EngineSpec(backend="server", server=ServerSpec(url=url))
    core = ServerCore(Open(engine=engine, model="m", sampling=dict(SAMPLING), clock=RunClock.start()))
    await core.open()
    found: dict[str, dict[str, list[float]]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = {"assayline": ask_by_core(core), "aiohttp": ask_by_aiohttp(session, f"{url}/completions")}
        for client in clients.values():
            await spend(client, IN_FLIGHT, 1, IN_FLIGHT)
        for _ in range(rounds):
            for name, client in clients.items():
                one = await spend(client, requests, 1, IN_FLIGHT) / requests
                token = (await spend(client, streams, tokens, streams) - streams * one) / (streams * (tokens - 1))
                costs = {"us_per_request": one * 1e6, "us_per_token": token * 1e6}
                print(name, {key: round(value, 1) for key, value in costs.items()}, flush=True)
                for key, value in costs.items():
                    found.setdefault(name, {}).setdefault(key, []).append(value)
    await core.close()
    return {
        name: {key: round(statistics.median(values), 1) for key, values in costs.items()}
        for name, costs in found.items()
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
    command = [sys.executable, "-m", "benchmarks.client", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
            print(json.dumps(asyncio.run(measure(url, args.requests, args.streams, args.tokens, args.rounds))))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
