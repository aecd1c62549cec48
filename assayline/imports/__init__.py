"""Imports of other tools' result files as runs, one module per kind of file.

A file without its requests or samples makes a run of the purpose `totals`: the numbers that it states.
"""

KINDS = {
    "lm-eval": "results_*.json of lm_eval, with samples_*.jsonl next to it or without",
    "openai-batch": "the files of one batch: input, output, errors",
    "vllm-bench": "results of vllm bench serve, throughput, latency or sweep, with --save-detailed or without",
    "guidellm": "reports of GuideLLM in JSON; each benchmark is a run",
    "inspect": ".eval and .json logs of Inspect",
    "eee": "logs of every_eval_ever 0.3, with NAME_samples.jsonl or without",
    "inference-perf": "stage_*_lifecycle_metrics.json of inference-perf",
    "values": "CSV or JSON with date, name and value, and perhaps model, unit and n; each date is a run",
}
"""Files by kind."""
