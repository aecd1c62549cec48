"""vLLM's own yardstick of offline throughput, `vllm bench throughput`, on prompts and output lengths of ours.

    python -m benchmarks.peer_vllm_throughput --model …

is that command: the console script of vLLM's CPU build looks for a package called vllm, which is not its name. It
samples at temperature 1, whatever else is asked for; lengths are forced, so the tokens are the same.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from assayline.engines.host.server.process import list_flags


def write_conversations(path: Path, rows: list[tuple[str, int]]) -> Path:
    """Texts and output lengths as the data set `sharegpt`, for a tokenizer that makes a token of every byte."""
    turns = [{"conversations": [{"value": text}, {"value": "x" * tokens}]} for text, tokens in rows]
    path.write_text(json.dumps(turns))
    return path


def measure_with_vllm(
    model: Path, args: dict[str, Any], rows: list[tuple[str, int]], env: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Seconds and tokens of one run in a process of its own. Raises CalledProcessError where it fails."""
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
    command = [sys.executable, "-m", "benchmarks.peer_vllm_throughput", *list_flags(options)]
    with (folder / "throughput.log").open("w") as log:
        subprocess.run(command, env=env, stdout=log, stderr=log, check=True)
    found = json.loads(result.read_text())
    told = re.search(r"Total num output tokens:\s+(\d+)", (folder / "throughput.log").read_text())
    tokens = int(told[1]) if told else sum(length for _, length in rows)
    return {"seconds": found["elapsed_time"], "requests": found["num_requests"], "output_tokens": tokens}


def main() -> None:
    from vllm.benchmarks.throughput import add_cli_args
    from vllm.benchmarks.throughput import main as bench
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    bench(parser.parse_args())


if __name__ == "__main__":
    main()
