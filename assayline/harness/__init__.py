"""Tasks of lm-evaluation-harness: its requests are asked by our engines, and its own code judges the answers.

What a task is (documents, few-shot examples, stop texts, filters, metrics, aggregation, groups) comes from the
harness's task objects, and is nowhere repeated here. Engine, recovery, resume, timings, storage and comparison are
ours. `lm_eval` is imported in this folder alone, and only where a spec names a task.
"""
