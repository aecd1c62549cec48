"""`python -m flows.baseline`, which is `assayline baseline`: flows/cli/baseline.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("baseline")
