"""Reference of `benchmarks.streaming`: vLLM's `AsyncLLM.generate`, a semaphore, and a loop that records timestamps.

Protocol: lines of JSON. The first is the model and its arguments, the others lists of requests. Each gets an answer.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM prints to stdout, from its import on

from vllm import SamplingParams  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.usage.usage_lib import UsageContext  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

from assayline.engines.host.vllm.internals import count_steps  # noqa: E402


class Steps:
    """Counts engine steps that scheduled something."""

    count = 0

    @staticmethod
    def add(made: int) -> None:
        Steps.count += made


async def answer(engine: AsyncLLM, name: str, request: dict[str, Any], gate: asyncio.Semaphore) -> dict[str, Any]:
    params = SamplingParams(**request["sampling"], output_kind=RequestOutputKind.DELTA)
    prompt = {"type": "token", "prompt_token_ids": request["prompt_token_ids"]}
    stamps, tokens, merged = [], 0, 0
    async with gate:
        async for output in engine.generate(prompt, params, name):
            new = len(output.outputs[0].token_ids)
            tokens += new
            if new == 1:
                stamps.append(output.metrics.last_token_ts)
            elif new:
                merged += 1
                stamps.append(None)  # merged outputs have only the last timestamp, so neighboring gaps are unknown
            stats = output.metrics
    return {
        "tokens": tokens,
        "merged": merged,
        "stamps": stamps,
        "first": stats.first_token_ts,
        "last": stats.last_token_ts,
    }


async def measure(engine: AsyncLLM, requests: list[dict[str, Any]], window: int, number: int) -> dict[str, Any]:
    gate, steps = asyncio.Semaphore(window), Steps.count
    started = time.monotonic()
    tasks = [answer(engine, f"{number}-{n}", request, gate) for n, request in enumerate(requests)]
    rows = await asyncio.gather(*tasks)
    return {"seconds": time.monotonic() - started, "engine_steps": Steps.count - steps, "rows": rows}


async def main() -> None:
    order = json.loads(sys.stdin.readline())
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=order["model"], **order["args"]),
        usage_context=UsageContext.OPENAI_API_SERVER,
    )
    count_steps(engine, Steps.add)
    print(json.dumps("ready"), file=ANSWERS, flush=True)
    for number, line in enumerate(iter(sys.stdin.readline, "")):
        found = await measure(engine, json.loads(line), order["window"], number)
        print(json.dumps(found), file=ANSWERS, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
