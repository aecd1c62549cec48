"""GuideLLM in a separate environment: runs a load and reads its report.

Definitions from its source: TTFT from the first byte of the request's headers to the first event with text;
`time_per_output_token` (last − start) / n, which includes TTFT; `inter_token_latency` (last − first) / (n − 1) per
request, weighted by tokens: assayline's TPOT. It does not store single gaps, so ITL is not available. Percentiles are
nearest rank. Throughput divides by the time from the first request to the end of the last one.

GuideLLM requests usage in every event, which makes events longer. Here it requests usage once, like the other clients,
so that all clients read the same amount.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.client_view import Load, Measurement, Observation, Server, write_rows
from benchmarks.peer_environment import prepare_environment
from benchmarks.process_tree import run_on_cores

GUIDELLM = "guidellm==0.8.1"


def measure_with_guidellm(load: Load, server: Server, folder: Path, cores: set[int]) -> Measurement:
    """Run the load in separate processes."""
    rows = write_rows(folder / "guidellm.jsonl", load.prompts, "output_tokens_count")
    profile: dict[str, Any] = {"kind": "concurrent", "streams": [load.concurrency]}
    if load.rate_per_s is not None:
        profile = {"kind": "constant", "rate": [load.rate_per_s]}
    body = {"temperature": 0, "stream_options": {"include_usage": True}}
    scenario = {
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": server.url,
                "model": server.model_name,
                "request_format": "/v1/completions",
                "extras": {"body": body},
            },
            "profile": profile,
            "constraints": [{"kind": "max_requests", "count": len(load.prompts)}],
            "data": [{"kind": "json_file", "path": str(rows)}],
            "tokenizer": {"kind": "huggingface_auto", "model": str(server.folder)},
            "outputs": [{"kind": "json", "path": str(folder / "guidellm.json")}],
        }
    }
    (folder / "guidellm_scenario.json").write_text(json.dumps(scenario))
    python = prepare_environment(GUIDELLM)
    command = [str(python), "-m", "guidellm", "run", "-c", str(folder / "guidellm_scenario.json"), "--disable-console"]
    env = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
    run_on_cores(command, cores, env, folder / "guidellm.log")
    return read_report(json.loads((folder / "guidellm.json").read_text()), len(load.prompts))


def read_report(report: dict[str, Any], requests: int) -> Measurement:
    """Read the report's benchmark. Requests that are missing from it or have no timestamps have failed."""
    (benchmark,) = report["benchmarks"]
    observations = []
    for request in benchmark["requests"]["successful"]:
        timings = request["info"]["timings"]
        if timings["first_token_iteration"] is None:
            continue
        observations.append(
            Observation(
                timings["request_start"],
                timings["first_token_iteration"],
                timings["last_token_iteration"],
                request["output_tokens"],
            )
        )
    reasons = tuple(str(request["info"]["error"]) for request in benchmark["requests"]["errored"])
    return Measurement(tuple(observations), requests - len(observations), reasons)
