"""What OpenAI's client costs with its typed layer and as assayline uses it: processor time of one process.

    python -m benchmarks.client_layers [--rounds 5] [--requests 200]

Both ask the same server, which has no model and streams by the clock, 50 requests at a time, 500-token prompts and
64-token answers; they take turns. What is counted is the processor time of this process from the first request to the
last, imports apart. The last line is JSON.
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import openai

from assayline.engines.host.server.body import RequestWriter
from assayline.engines.host.server.client import ServedClient
from assayline.engines.host.server.events import ServedAnswer
from assayline.records import Request
from assayline.spec.engine import ServerSpec

CONCURRENCY, PROMPT_TOKENS, OUTPUT_TOKENS = 50, 500, 64
PROMPT = list(range(PROMPT_TOKENS))
SAMPLING = {"temperature": 0, "max_tokens": OUTPUT_TOKENS}
Ask = Callable[[], Awaitable[int]]


async def spend(ask: Ask, requests: int) -> float:
    """Processor seconds for so many requests, each of which must bring all its tokens."""
    seats = asyncio.Semaphore(CONCURRENCY)

    async def ask_one() -> None:
        async with seats:
            assert await ask() == OUTPUT_TOKENS

    await ask()  # the connection, and what is made once
    started = time.process_time()
    await asyncio.gather(*(ask_one() for _ in range(requests)))
    return time.process_time() - started


async def compare(url: str, rounds: int, requests: int) -> dict[str, list[float]]:
    """Processor seconds of both, round by round."""
    typed = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    lean = ServedClient(ServerSpec(url=url), url)
    writer = RequestWriter("completions", "model", True, 1024, {})

    async def ask_typed() -> int:
        stream = await typed.completions.create(
            model="model", prompt=PROMPT, stream=True, stream_options={"include_usage": True}, extra_body={
                "return_token_ids": True}, **SAMPLING,
        )  # fmt: skip
        return sum([1 async for event in stream if event.choices])

    async def ask_lean() -> int:
        answer = ServedAnswer()
        await lean.stream(writer.path, writer.write(Request("r", "p", 0, 0, PROMPT, SAMPLING)), answer)
        return len(answer.token_stamps)

    spent: dict[str, list[float]] = {"typed": [], "assayline": []}
    for number in range(rounds):
        for name, ask in sorted({"typed": ask_typed, "assayline": ask_lean}.items(), reverse=bool(number % 2)):
            spent[name].append(await spend(ask, requests))
            print(f"round {number + 1}, {name}: {spent[name][-1]:.2f} s", flush=True)
    await typed.close()
    await lean.close()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.paced_server", str(port), "--gap-s", "0.01"])
    try:
        await_port(port)
        spent = asyncio.run(compare(f"http://127.0.0.1:{port}/v1", options.rounds, options.requests))
    finally:
        server.kill()
        server.wait()
    tokens = options.requests * OUTPUT_TOKENS
    result = {
        "ratio": statistics.median(
            ours / typed for ours, typed in zip(spent["assayline"], spent["typed"], strict=True)
        ),
        **{f"{name}_us_per_token": 1e6 * statistics.median(times) / tokens for name, times in spent.items()},
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


def await_port(port: int, timeout_s: float = 60.0) -> None:
    """Returns once somebody listens."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit(f"Nobody listens on port {port}.")


if __name__ == "__main__":
    main()
