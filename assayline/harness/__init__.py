"""Tasks of lm-evaluation-harness: assayline's engines answer its requests, and the harness judges the answers.

Documents, few-shot examples, stop strings, filters, metrics, aggregation and groups come from the harness's task
objects and are not reimplemented. assayline does generation, recovery, resume, timings, storage and comparison. Only
this package imports `lm_eval`, and only if a spec names a task.
"""
