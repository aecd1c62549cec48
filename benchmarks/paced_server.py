"""A server that streams tokens by the clock, and knows when it did: what clients of it must see.

    python -m benchmarks.paced_server PORT --first-s 0.1 --gap-s 0.02

Speaks just enough of /v1/completions for the clients that are compared. No model: after `first_s` the first token is
written, then one every `gap_s`, so that no engine decides a latency. `GET /seen` tells when each request was read and
when each of its tokens was written, on the machine's monotonic clock.
"""

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

JSON_TYPE, EVENTS_TYPE = "application/json", "text/event-stream"


@dataclass
class PacedServer:
    """The pace, and what was answered so far."""

    first_s: float
    gap_s: float
    seen: list[list[float]] = field(default_factory=list)
    """Per request: when it was read, then when each token was written."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length:")[2].partition("\r\n")[0].strip()
                body = await reader.readexactly(int(length or 0))
                read_at = time.monotonic()
                method, path, _ = head.split(" ", 2)
                if method == "post" and path == "/v1/completions" and b'"prompt"' in body:
                    await self._stream(writer, json.loads(body), read_at)
                else:
                    self._answer(writer, path)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, path: str) -> None:
        found: Any = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [{"id": "model", "owned_by": "vllm", "max_model_len": 1024}]},
            "/version": {"version": "paced"},
            "/seen": self.seen,
        }.get(path)
        status = {"/v1/completions": "400 Bad Request"}.get(path, "404 Not Found" if found is None else "200 OK")
        body = json.dumps(found).encode()
        writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {JSON_TYPE}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        writer.write(body)

    async def _stream(self, writer: asyncio.StreamWriter, request: dict[str, Any], read_at: float) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {EVENTS_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        count = request["max_tokens"]
        stamps = [read_at]
        for index in range(count):
            await asyncio.sleep(read_at + self.first_s + index * self.gap_s - time.monotonic())
            choice: dict[str, Any] = {"index": 0, "text": f"<{index}>", "finish_reason": None}
            if index == count - 1:
                choice["finish_reason"] = "length"
            if request.get("return_token_ids"):
                choice["token_ids"] = [index]
            stamps.append(time.monotonic())
            _write_event(writer, {"id": "cmpl-paced", "object": "text_completion", "choices": [choice]})
        self.seen.append(stamps)
        prompt_tokens = len(request["prompt"])
        total = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": prompt_tokens + count}
        _write_event(writer, {"id": "cmpl-paced", "object": "text_completion", "choices": [], "usage": total})
        _write_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def _write_event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _write_chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def run_server(port: int, first_s: float, gap_s: float) -> None:
    """Until the process is ended."""
    paced = PacedServer(first_s, gap_s)
    server = await asyncio.start_server(paced.serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--first-s", type=float, default=0.1)
    parser.add_argument("--gap-s", type=float, default=0.02)
    options = parser.parse_args()
    asyncio.run(run_server(options.port, options.first_s, options.gap_s))


if __name__ == "__main__":
    main()
