"""Imports of other tools' result files as runs, one module per kind of file."""

KINDS = {
    "lm-eval": "results_*.json of lm_eval with samples_*.jsonl next to it, or a folder with them",
    "openai-batch": "the files of one batch: input, output, errors",
    "vllm-bench": "results of vllm bench serve --save-result --save-detailed",
    "guidellm": "reports of GuideLLM in JSON; each benchmark is a run",
    "inspect": ".eval and .json logs of Inspect, or a folder with them",
    "eee": "logs of every_eval_ever 0.3 with NAME_samples.jsonl, or a folder with them",
}
"""Files by kind."""
