# Every target sets up what it needs; a second run has no set-up work.
PYTHON ?= python3
VENV := .venv/bin
# Without internet: a folder that `make wheels` has filled elsewhere.
WHEELS ?=
# Without compiled modules every process would compile vLLM anew: three times the time to start.
unexport PYTHONDONTWRITEBYTECODE
# A test that hangs fails after so many seconds and shows what each of its threads was doing.
TIMEOUT = --timeout 300
# Tests of a file stay in one lane, as they share engines and servers; the heaviest files come first.
LANES = -n 2 --dist loadfile --no-loadscope-reorder $(TIMEOUT)
SETUP = $(PYTHON) scripts/setup.py $(if $(WHEELS),--wheels "$(WHEELS)")

.PHONY: help setup setup-dev wheels demo test test-rare test-again test-airgap test-fast test-vllm test-examples test-faults test-parallel test-postgres lint bench bench-memory bench-tasks bench-false-alarms bench-level-shifts bench-false-winners bench-many-runs bench-serving bench-client bench-batch bench-scale gpu-check gpu-bundle docs clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## .venv with the right vLLM for this machine
	@$(SETUP)

setup-dev:
	@$(SETUP) --dev

wheels: ## fill WHEELS=wheels for a machine without internet; TARGET=cpu|cuda, PYTHON_VERSION=3.12
	@$(SETUP) wheels --target "$(TARGET)" --python "$(PYTHON_VERSION)"

demo: setup ## evaluate the tiny model on examples/arithmetic.yaml, with real vLLM
	@echo "demo: 1 of 2, the tiny model, from its trained weights: seconds"
	@$(VENV)/python -m examples.tiny_model
	@echo "demo: 2 of 2, its answers to 155 questions, by real vLLM: about half a minute"
	@$(VENV)/assayline evaluate examples/arithmetic.yaml

test: setup-dev ## every test, those against real vLLM included
	@echo "test: 1 of 2, the tiny model, from its trained weights: seconds"
	@$(VENV)/python -m examples.tiny_model
	@echo "test: 2 of 2, every test, in two lanes: a quarter of an hour; test-fast takes two: no engines, no servers, no whole runs"
	@$(VENV)/python -m pytest $(LANES) -m "not rare"

test-rare: setup-dev ## what is left out of test: vLLM orphaned or on a Ray node that dies, a server that restarts, the same bytes twice, DuckDB 1.5; ten minutes
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m pytest $(LANES) -m rare

test-again: setup-dev ## the tests that failed last, one after another, with nothing beside them
	@$(VENV)/python -m pytest -n 0 $(TIMEOUT) --last-failed --last-failed-no-failures none

test-airgap: setup-dev ## set-up from a folder of wheels, without any network; 6 GB of disk, some minutes
	@$(VENV)/python -m pytest tests/setup/check_airgap.py -s --basetemp "$${TMPDIR:-/tmp}/assayline-airgap"

test-fast: setup-dev ## tests without vLLM, servers and whole runs
	@$(VENV)/python -m pytest $(LANES) -m "not vllm and not prefect and not ray and not slow and not rare"

test-vllm: setup-dev ## the engines' tests with another vLLM: VLLM=0.29.0; WITH="prefect==3.9.1"; TESTS=files; an environment of its own
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python scripts/try_vllm.py "$(VLLM)" --with "$(WITH)" $(if $(TESTS),--tests "$(TESTS)") $(if $(MARKS),--marks "$(MARKS)")

test-examples: setup-dev ## the tests with random examples: fresh ones, and many
	@HYPOTHESIS_PROFILE=fresh $(VENV)/python -m pytest $(LANES) -m "hypothesis and not vllm"

test-faults: setup-dev ## hurt runs 200 times on one machine and 200 on four Ray nodes, kill vLLM thirty times; half an hour
	@$(VENV)/python -m pytest tests/evaluation/test_worker_faults.py -s --faults 200
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m pytest tests/flows/test_kills.py -s --kills 30

test-parallel: setup-dev ## a model split over two processes of an engine; a minute, and both cores
	@$(VENV)/python -m pytest tests/engines/check_tensor_parallel.py -s

test-postgres: setup-dev ## Prefect's server on a real PostgreSQL, and a deployment on it; some minutes
	@$(VENV)/python -m pytest -n 0 tests/flows/check_postgres.py -s

lint: setup-dev ## ruff, its format, mypy --strict, import-linter
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports

bench: setup-dev ## the pipeline against raw vLLM; slow
	@$(VENV)/python -m benchmarks.overhead

bench-memory: setup-dev ## peak memory from 10 thousand to a million prompts; slow
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.memory

bench-tasks: setup-dev ## tasks of lm-evaluation-harness here and there, prompt by prompt, and their tests; installs it aside
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.lm_eval_tasks
	@.cache/lm_eval-0.4.13/bin/python -m pytest -n 0 tests/harness

bench-false-alarms: setup-dev ## how often the gate cries wolf, and how often it should; about 15 minutes
	@$(VENV)/python -m benchmarks.false_alarms

bench-level-shifts: setup-dev ## how often a history shows a shift that is none, and which it finds; about 5 minutes
	@$(VENV)/python -m benchmarks.level_shifts

bench-false-winners: setup-dev ## how often a leaderboard calls a winner that is none, and which leads it finds; about 10 minutes
	@$(VENV)/python -m benchmarks.false_winners

bench-many-runs: setup-dev ## questions over a thousand runs of ten thousand requests; slow, 4 GB of disk
	@$(VENV)/python -m benchmarks.many_runs

bench-serving: setup-dev ## latencies against vllm bench serve and GuideLLM, one server; about 25 minutes
	@$(VENV)/python -m benchmarks.agreement

bench-client: setup-dev ## CPU and send lag of the load generator against GuideLLM's; about 10 minutes
	@$(VENV)/python -m benchmarks.client_overhead

bench-batch: setup-dev ## a batch file through vllm run-batch and here, killed at 99 %; steps; some minutes
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.run_batch

bench-scale: setup-dev ## CPU time of the flow for 1 to 16 workers, and computed for a thousand GPUs
	@$(VENV)/python -m benchmarks.scale

gpu-check: setup-dev ## what a GPU gives, and what is survived there; ten minutes; DEVICE=cpu rehearses, PARTS=throughput,memory
	@$(if $(filter cpu,$(DEVICE)),,$(VENV)/python -m examples.tiny_model)
	@$(VENV)/python -m benchmarks.gpu $(if $(DEVICE),--device $(DEVICE)) $(if $(PARTS),--parts $(PARTS))

gpu-bundle: setup-dev ## offline/: this commit with vLLM 0.26 for a CUDA machine without network, in 64 MiB; EXTRA="NAME==VERSION"
	@$(VENV)/python scripts/offline/pack.py --extra "$(EXTRA)"

docs: ## build the documentation's site into site/ and check its links; an environment of its own
	@$(PYTHON) scripts/docs_site.py

clean: ## remove .venv, caches and data
	rm -rf .venv .cache data offline site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
