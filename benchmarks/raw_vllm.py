"""Reference of other benchmarks: plain `vllm.LLM.generate` in a separate process.

Protocol: lines of JSON. The first line is {model, args}; the others are lists of {prompt_token_ids, sampling}, with
the paths of a prompt's images as `images`. Each list is answered by {seconds, load_s, cpu_s, output_tokens,
engine_steps}. `seconds` covers reading and decoding all images and `generate`; `load_s` only the former; `cpu_s` is
the CPU time of this process, which holds the engine if the environment configures it; `engine_steps` are those that
scheduled something.
"""

import json
import os
import resource
import sys
import time
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and its processes print to stdout
    from vllm import LLM, SamplingParams

    from assayline.engines.host.vllm.internals import count_steps

    order = json.loads(sys.stdin.readline())
    llm = LLM(model=order["model"], **order["args"], disable_log_stats=False)
    steps = 0

    def count(made: int) -> None:
        nonlocal steps
        steps += made

    count_steps(llm.llm_engine, count)
    llm.generate([{"prompt_token_ids": [5] * 40}], SamplingParams(max_tokens=4), use_tqdm=False)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        requests = json.loads(line)
        params = [SamplingParams(**request["sampling"]) for request in requests]
        steps, started, cpu = 0, time.monotonic(), count_cpu()
        prompts = [make_prompt(request) for request in requests]
        load_s = time.monotonic() - started
        outputs = llm.generate(prompts, params, use_tqdm=False)
        measured = {
            "seconds": time.monotonic() - started,
            "load_s": load_s,
            "cpu_s": count_cpu() - cpu,
            "output_tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
            "engine_steps": steps,
        }
        print(json.dumps(measured), file=answers, flush=True)


def make_prompt(request: dict[str, Any]) -> Any:
    """Convert to vLLM's prompt format. Reads and decodes images."""
    prompt = {"prompt_token_ids": request["prompt_token_ids"]}
    if "images" in request:
        from PIL import Image

        prompt["multi_modal_data"] = {"image": [Image.open(path).convert("RGB") for path in request["images"]]}
    return prompt


def count_cpu() -> float:
    """Return CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
