"""vLLM's own benchmarks, `vllm bench serve` and `vllm bench throughput`: runs them on a load and reads their results.

    python -m benchmarks.peer_vllm serve --backend openai …

replaces the console script, which in vLLM's CPU build looks for a package named vllm and fails.

Definitions of `serve`, equal to assayline's: TTFT from just before the request is written to the first event with a
choice; ITL: gaps between such events, pooled; TPOT (last − first) / (n − 1); linear percentiles. Its throughput divides
by the time from before the schedule's first gap, assayline's by the time from the first request.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from assayline.engines.host.server.process import list_flags
from benchmarks.client_view import Load, Measurement, Observation, Server, write_rows
from benchmarks.process_tree import run_on_cores


def measure_with_vllm_bench(load: Load, server: Server, folder: Path, cores: set[int]) -> Measurement:
    """Run the load in a separate process."""
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
        "result-dir": folder,
        "result-filename": "vllm_bench.json",
    }
    if load.rate_per_s is None:
        options["max-concurrency"] = load.concurrency
    else:
        options |= {
            "request-rate": load.rate_per_s,
            "burstiness": "inf",
        }  # a gamma distribution without spread: constant gaps
    flags = ["disable-shuffle", "skip-chat-template", "ignore-eos", "save-result", "save-detailed", "disable-tqdm"]
    command = [sys.executable, "-m", "benchmarks.peer_vllm", "serve", *(f"--{flag}" for flag in flags)]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    run_on_cores(command, cores, env, folder / "vllm_bench.log")
    return read_result(json.loads((folder / "vllm_bench.json").read_text()))


def read_result(result: dict[str, Any]) -> Measurement:
    """Read the file of --save-result and --save-detailed."""
    lists = (result[name] for name in ("start_times", "ttfts", "itls", "output_lens", "errors"))
    observations = [
        Observation(start, start + ttft, start + ttft + sum(gaps), tokens, tuple(gaps))
        for start, ttft, gaps, tokens, error in zip(*lists, strict=True)
        if not error
    ]
    reasons = tuple(error for error in result["errors"] if error)
    return Measurement(tuple(observations), result["failed"], reasons)


def write_conversations(path: Path, rows: list[tuple[str, int]]) -> Path:
    """Write texts and output lengths in the format `sharegpt`, for a byte-level tokenizer."""
    turns = [{"conversations": [{"value": text}, {"value": "x" * tokens}]} for text, tokens in rows]
    path.write_text(json.dumps(turns))
    return path


def measure_offline(
    model: Path, args: dict[str, Any], rows: list[tuple[str, int]], env: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Run `vllm bench throughput`. Return seconds and tokens. Raises CalledProcessError if it fails.

    It always samples at temperature 1; lengths are forced, so the number of tokens is the same.
    """
    result = folder / "throughput.json"
    options = {
        "backend": "vllm",
        "dataset_name": "sharegpt",
        "dataset_path": str(write_conversations(folder / "conversations.json", rows)),
        "num_prompts": len(rows),
        "output_json": str(result),
        "model": str(model),
        "tokenizer": str(model),
        **args,
    }
    command = [sys.executable, "-m", "benchmarks.peer_vllm", "throughput", *list_flags(options)]
    with (folder / "throughput.log").open("w") as log:
        subprocess.run(command, env=env, stdout=log, stderr=log, check=True)
    found = json.loads(result.read_text())
    told = re.search(r"Total num output tokens:\s+(\d+)", (folder / "throughput.log").read_text())
    tokens = int(told[1]) if told else sum(length for _, length in rows)
    return {"seconds": found["elapsed_time"], "requests": found["num_requests"], "output_tokens": tokens}


def main() -> None:
    bench = importlib.import_module(f"vllm.benchmarks.{sys.argv.pop(1)}")
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    bench.add_cli_args(parser)
    bench.main(parser.parse_args())


if __name__ == "__main__":
    main()
