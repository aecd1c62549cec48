"""Plain `vllm.LLM.generate` in a process of its own, as anybody would call it: the yardstick of `overhead.py`.

Speaks lines of JSON: the first line in is {model, args}; every other line in is a list of {prompt_token_ids, sampling},
answered by {seconds, output_tokens, engine_steps}.
"""

import json
import sys
import time
from typing import Any


def main() -> None:
    from vllm import LLM, SamplingParams

    answers = sys.stdout
    sys.stdout = sys.stderr  # vLLM prints
    order = json.loads(sys.stdin.readline())
    llm = LLM(model=order["model"], **order["args"], disable_log_stats=False)
    engine_step, steps = llm.llm_engine.step, 0

    def count_step() -> Any:
        nonlocal steps
        steps += 1
        return engine_step()

    llm.llm_engine.step = count_step
    llm.generate([{"prompt_token_ids": [5] * 40}], SamplingParams(max_tokens=4), use_tqdm=False)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        requests = json.loads(line)
        prompts = [{"prompt_token_ids": request["prompt_token_ids"]} for request in requests]
        params = [SamplingParams(**request["sampling"]) for request in requests]
        steps, started = 0, time.monotonic()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.monotonic() - started
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        measured = {"seconds": seconds, "output_tokens": tokens, "engine_steps": steps}
        print(json.dumps(measured), file=answers, flush=True)


if __name__ == "__main__":
    main()
