# Every target sets up what it needs; a second run has no set-up work.
PYTHON ?= python3
VENV := .venv/bin

.PHONY: help setup setup-dev demo test test-fast test-faults lint bench bench-memory bench-false-alarms bench-agreement bench-many-runs bench-serving bench-client clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## .venv with the right vLLM for this machine
	@$(PYTHON) scripts/setup.py

setup-dev:
	@$(PYTHON) scripts/setup.py --dev

demo: setup ## evaluate the tiny model on examples/arithmetic.yaml, with real vLLM
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m flows.evaluate examples/arithmetic.yaml

test: setup-dev ## every test, those against real vLLM included
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m pytest

test-fast: setup-dev ## tests that need neither vLLM nor a Prefect server
	@$(VENV)/python -m pytest -m "not vllm and not prefect and not ray"

test-faults: setup-dev ## kill flow, workers and engines thirty times; about 15 minutes
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m pytest tests/flows/test_kills.py -s --kills 30

lint: setup-dev ## ruff, mypy --strict, import-linter
	@$(VENV)/ruff check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports

bench: setup-dev ## the pipeline against raw vLLM; slow
	@$(VENV)/python -m benchmarks.overhead

bench-memory: setup-dev ## peak memory from 10 thousand to a million prompts; slow
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.memory

bench-agreement: setup-dev ## scores against lm-evaluation-harness, prompt by prompt; installs it aside
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.lm_eval_agreement

bench-false-alarms: setup-dev ## how often the gate cries wolf, and how often it should; about 15 minutes
	@$(VENV)/python -m benchmarks.false_alarms

bench-many-runs: setup-dev ## every model over a thousand runs of ten thousand requests; slow, 4 GB of disk
	@$(VENV)/python -m benchmarks.many_runs

bench-serving: setup-dev ## latencies against vllm bench serve and GuideLLM, one server; about 25 minutes
	@$(VENV)/python -m benchmarks.client_accuracy
	@$(VENV)/python -m benchmarks.agreement

bench-client: setup-dev ## CPU and send lag of the load generator against GuideLLM's; about 10 minutes
	@$(VENV)/python -m benchmarks.client_overhead

clean: ## remove .venv, caches and data
	rm -rf .venv .cache data .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
