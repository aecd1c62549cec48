"""`python -m flows.worker`, which is `assayline worker`: flows/cli/worker.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("worker")
