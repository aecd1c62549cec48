"""vLLM's own load generator, `vllm bench serve`: run on a load, and its result read.

    python -m benchmarks.peer_vllm_bench --backend openai …

is that command: the console script of vLLM's CPU build looks for a package called vllm, which is not its name.

Its definitions: TTFT from just before the request is written to the first event with a choice; ITL the gaps between
such events, pooled; TPOT (last − first) / (n − 1); linear percentiles: ours. Its throughput divides by the time from
before the first gap of the schedule, and ours by the time from the first request.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.client_view import Load, Measurement, Observation, Server, write_rows
from benchmarks.process_tree import CpuSamples, run_sampled


def measure_with_vllm_bench(
    load: Load, server: Server, folder: Path, cores: set[int]
) -> tuple[Measurement, CpuSamples]:
    """One run in a process of its own."""
    rows = write_rows(folder / "vllm_bench.jsonl", load.prompts, "output_tokens")
    options = {
        "backend": "openai",
        "base-url": server.url,
        "model": server.model_name,
        "tokenizer": server.folder,
        "dataset-name": "custom",
        "dataset-path": rows,
        "custom-output-len": -1,
        "num-prompts": len(load.prompts),
        "temperature": 0,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": "50,95",
        "result-dir": folder,
        "result-filename": "vllm_bench.json",
    }
    if load.rate_per_s is None:
        options["max-concurrency"] = load.concurrency
    else:
        options |= {"request-rate": load.rate_per_s, "burstiness": "inf"}  # gaps of a gamma without spread: constant
    flags = ["disable-shuffle", "skip-chat-template", "ignore-eos", "save-result", "save-detailed", "disable-tqdm"]
    command = [sys.executable, "-m", "benchmarks.peer_vllm_bench", *(f"--{flag}" for flag in flags)]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    samples = run_sampled(command, cores, env, folder / "vllm_bench.log")
    return read_result(json.loads((folder / "vllm_bench.json").read_text())), samples


def read_result(result: dict[str, Any]) -> Measurement:
    """The file that --save-result and --save-detailed write."""
    lists = (result[name] for name in ("start_times", "ttfts", "itls", "output_lens", "errors"))
    observations = [
        Observation(start, start + ttft, start + ttft + sum(gaps), tokens, 1 + len(gaps), tuple(gaps))
        for start, ttft, gaps, tokens, error in zip(*lists, strict=True)
        if not error
    ]
    own: dict[str, float | None] = {
        f"{ours}_p{percentile}_s": result[f"p{percentile}_{theirs}_ms"] / 1000
        for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el"))
        for percentile in (50, 95)
    }
    own["output_tokens_per_s"] = result["output_throughput"]
    zero_s = time.time() - time.perf_counter()  # its stamps are of this clock, which the machine's processes share
    reasons = tuple(error for error in result["errors"] if error)
    return Measurement(tuple(observations), result["failed"], own, zero_s, reasons)


def main() -> None:
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    bench(parser.parse_args())


if __name__ == "__main__":
    main()
